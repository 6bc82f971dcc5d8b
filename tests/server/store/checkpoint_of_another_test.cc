// Checkpoints of another program's version or of another model, and folders that are none: what a start makes of them.
#include <filesystem>

#include "common/base/error.h"
#include "common/model/families.h"
#include "common/model/model_init.h"
#include "server/store/checkpoint_manifest.h"
#include "server/store/checkpoint_store.h"
#include "tests/common/model/small_configs.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

namespace fs = std::filesystem;

class CheckpointOfAnotherTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ / ("checkpoints/" + name); }

  const TempFolder folder_;
  const CheckpointStore store_ = *CheckpointStore::Open(folder_.path());
};

// It is whole, and of use to another program: left out, its steps would be given up for good.
TEST_F(CheckpointOfAnotherTest, AManifestOfAnotherVersionIsNoAnswer) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("newer", 1, 1), ""), IsOk());
  std::string text = BytesOf(Path("newer/manifest.json"));
  const std::string version = absl::StrCat("\"version\":", kManifestVersion);
  ASSERT_EQ(text.find(version), text.rfind(version));
  text.replace(text.find(version), version.size(), absl::StrCat("\"version\":", kManifestVersion + 1));
  SetBytes(Path("newer/manifest.json"), Sealed(text));
  EXPECT_THAT(store_.Scan().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("newer/manifest.json"), HasSubstr("use the program that wrote it"),
                             HasSubstr("move the folder away, which gives up the steps since"))));
}

DrawnSave SaveOfModel(const std::string& name, const std::string& config_json) {
  DrawnSave save = MakeSave(name, 1, 1);
  save.contents["config.json"] = config_json;
  auto& parts = *save.manifest.mutable_parts();
  for (int i = parts.size() - 1; i >= 0; --i) {
    if (parts[i].file() == "config.json") parts.DeleteSubrange(i, 1);
  }
  AddPart(save, "config.json", 0, {{0, config_json.size()}});
  return save;
}

TEST_F(CheckpointOfAnotherTest, ACheckpointOfAnotherModelIsRefusedByItsFirstDifference) {
  const ModelConfig model = SmallLlama();
  ASSERT_THAT(CommitSave(store_, folder_.path(), SaveOfModel("mine", ModelConfigJson(model)), ""), IsOk());
  EXPECT_THAT(store_.CheckModel("mine", model), IsOk());
  ModelConfig other = model;
  other.num_layers += 1;
  other.ffn_size += 8;
  const absl::Status status = store_.CheckModel("mine", other);
  EXPECT_EQ(ErrorReason(status), "INVALID_REQUEST");
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("checkpoint mine is of another model"),
                                                                 HasSubstr("differ in num_hidden_layers"))));
}

// A byte that was flipped may leave a config of another size, or none: the checkpoint is damaged, and one before it may
// be whole.
TEST_F(CheckpointOfAnotherTest, ADamagedConfigIsNoOtherModel) {
  const ModelConfig model = SmallLlama();
  ASSERT_THAT(CommitSave(store_, folder_.path(), SaveOfModel("mine", ModelConfigJson(model)), ""), IsOk());
  ModelConfig other = model;
  other.ffn_size += 8;
  SetBytes(Path("mine/config.json"), ModelConfigJson(other));
  EXPECT_THAT(store_.CheckModel("mine", model),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("config.json: is not what was saved")));
  SetBytes(Path("mine/config.json"), "{\"model_type\" 1}");
  EXPECT_EQ(ErrorReason(store_.CheckModel("mine", model)), "");
}

TEST_F(CheckpointOfAnotherTest, FoldersThatAreNoCheckpointHaveNamesAllTheSame) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("whole", 1, 1), ""), IsOk());
  fs::create_directory(Path("step-2"));
  fs::create_directory(Path(".tmp-x"));
  const auto names = store_.Names();
  ASSERT_THAT(names, IsOk());
  EXPECT_THAT(*names, ::testing::UnorderedElementsAre("whole", "step-2"));
}

}  // namespace
}  // namespace stemma::server
