// Which files of a model directory an export copies.
#include "common/model/other_files.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;
using ::testing::UnorderedElementsAre;

class OtherFilesTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text = "{}") {
    ASSERT_THAT(WriteFile(folder_ / name, text), IsOk());
  }
  std::vector<std::string> Found() {
    const auto found = FindOtherFiles(folder_.path());
    EXPECT_THAT(found, IsOk());
    std::vector<std::string> names;
    if (found.ok()) {
      for (const auto& [name, path] : found->files) names.push_back(name);
    }
    return names;
  }

  const testing::TempFolder folder_;
};

TEST_F(OtherFilesTest, EveryTokenizersFilesAreFoundAndNoOthers) {
  const std::vector<std::string> files = {"added_tokens.json",
                                          "chat_template.jinja",
                                          "chat_template.json",
                                          "config.json",
                                          "generation_config.json",
                                          "merges.txt",
                                          "preprocessor_config.json",
                                          "processor_config.json",
                                          "qwen.tiktoken",
                                          "sentencepiece.bpe.model",
                                          "special_tokens_map.json",
                                          "spiece.model",
                                          "tekken.json",
                                          "tiktoken.model",
                                          "tokenizer.4.0.0.json",
                                          "tokenizer.json",
                                          "tokenizer.model",
                                          "tokenizer.model.v3",
                                          "tokenizer_config.json",
                                          "video_preprocessor_config.json",
                                          "vocab.json",
                                          "vocab.txt"};
  for (const std::string& name : files) Write(name);
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "notes.txt", "tokenizer.pkl",
        "tokenizer.models", "optimizer.pt", "my.model", "train.py", ".hidden.json"}) {
    Write(name);
  }
  EXPECT_THAT(Found(), ::testing::ElementsAreArray(files));
}

TEST_F(OtherFilesTest, CodeIsCopiedWhereTheTokenizerNamesSome) {
  Write("train.py", "");
  EXPECT_THAT(Found(), IsEmpty());
  Write("tokenizer_config.json");
  EXPECT_THAT(Found(), ElementsAre("tokenizer_config.json"));
  fs::rename(folder_ / "tokenizer_config.json", folder_ / "blob");  // a hub cache's snapshot has links
  ASSERT_THAT(WriteFile(folder_ / "blob", R"({"auto_map": {"AutoTokenizer": ["train.T", null]}})"), IsOk());
  fs::create_symlink("blob", folder_ / "tokenizer_config.json");
  EXPECT_THAT(Found(), ElementsAre("tokenizer_config.json", "train.py"));
}

// A loader that trusts the model's own code opens no directory without it.
TEST_F(OtherFilesTest, AModelOrAProcessorMayNameCodeToo) {
  Write("processing.py", "");
  for (const std::string name :
       {"config.json", "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"}) {
    Write(name);
    EXPECT_THAT(Found(), ElementsAre(name)) << "control";
    Write(name, R"({"auto_map": {"AutoProcessor": "processing.P"}})");
    EXPECT_THAT(Found(), UnorderedElementsAre(name, "processing.py"));
    fs::remove(folder_ / name);
  }
}

TEST_F(OtherFilesTest, FurtherChatTemplatesLieInTheirFolder) {
  fs::create_directory(folder_ / kChatTemplatesFolder);
  for (const char* name : {"tool_use.jinja", "rag.jinja", "notes.txt", ".hidden.jinja"}) {
    Write(std::string(kChatTemplatesFolder) + "/" + name, "");
  }
  EXPECT_THAT(Found(), ElementsAre("additional_chat_templates/rag.jinja", "additional_chat_templates/tool_use.jinja"));
}

TEST_F(OtherFilesTest, AFileInThePlaceOfTheirFolderHoldsNone) {
  Write(kChatTemplatesFolder, "");
  EXPECT_THAT(Found(), ElementsAre());
}

// Exports and checkpoints have names of a few characters: whoever opened one without the file would not know why.
TEST_F(OtherFilesTest, WhatIsLeftOutForItsNameIsNamed) {
  fs::create_directory(folder_ / kChatTemplatesFolder);
  for (const char* name : {"rag+tools.jinja", "my notes.txt", "rag.jinja"}) {
    Write(std::string(kChatTemplatesFolder) + "/" + name, "");
  }
  for (const char* name : {"my words.tiktoken", "my notes.txt"}) Write(name, "");
  const auto found = FindOtherFiles(folder_.path());
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->files.size(), 1u);
  EXPECT_THAT(found->left_out,
              UnorderedElementsAre(HasSubstr("additional_chat_templates/\"rag+tools.jinja\" is not a valid name"),
                                   HasSubstr("\"my words.tiktoken\" is not a valid name")));
}

// A save that met it would fail, each time.
TEST_F(OtherFilesTest, AFolderOfTheNameOfAFileIsLeftOut) {
  Write("tokenizer_config.json", R"({"auto_map": {}})");
  for (const char* name : {"own.py", "tokenizer.json"}) fs::create_directory(folder_ / name);
  const auto found = FindOtherFiles(folder_.path());
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->files.size(), 1u);
  EXPECT_THAT(found->left_out,
              UnorderedElementsAre("own.py is not a regular file", "tokenizer.json is not a regular file"));
}

TEST_F(OtherFilesTest, AFolderThatMayNotBeListedSaysSo) {
  constexpr uid_t kNobody = 65534;
  fs::create_directory(folder_ / kChatTemplatesFolder);
  const uid_t user = geteuid();
  for (const std::string& folder : {folder_.path(), std::string(folder_ / kChatTemplatesFolder)}) {
    fs::permissions(folder_.path(), fs::perms(0755));
    ASSERT_THAT(FindOtherFiles(folder_.path()), IsOk()) << "control";
    fs::permissions(folder, fs::perms(0311));
    ASSERT_EQ(seteuid(user == 0 ? kNobody : user), 0);
    const absl::Status status = FindOtherFiles(folder_.path()).status();
    ASSERT_EQ(seteuid(user), 0);
    fs::permissions(folder, fs::perms(0755));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kPermissionDenied,
                                 HasSubstr("list the files of the model directory " + folder)));
  }
}

TEST_F(OtherFilesTest, ALinkThatLeadsNowhereIsToldIfItIsOneOfThem) {
  fs::create_symlink("nothing", folder_ / "notes.txt");
  EXPECT_THAT(Found(), IsEmpty());
  fs::create_symlink("nothing", folder_ / "tekken.json");
  EXPECT_THAT(FindOtherFiles(folder_.path()).status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("tekken.json")));
}

// As where the templates lie on a disk that is not mounted: exports without them would render other conversations.
TEST_F(OtherFilesTest, ALinkToNoFolderOfChatTemplatesIsTold) {
  fs::create_symlink("nothing", folder_ / kChatTemplatesFolder);
  EXPECT_THAT(FindOtherFiles(folder_.path()).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(kChatTemplatesFolder)));
  fs::create_directory(folder_ / "nothing");
  Write("nothing/rag.jinja", "");
  EXPECT_THAT(Found(), ElementsAre("additional_chat_templates/rag.jinja"));
}

}  // namespace
}  // namespace stemma
