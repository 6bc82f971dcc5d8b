// One rank's saves: on a thread of their own or not, refused, failed, given up. Disks fail by tests/.../file_calls.h.
#include "worker/checkpoint/checkpoint_saver.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/weights_digest.h"
#include "tests/testing/whole_model.h"
#include "tests/worker/checkpoint/file_calls.h"
#include "tests/worker/checkpoint/held_place.h"
#include "tests/worker/checkpoint/saved_checkpoint.h"
#include "worker/model/weights_io.h"
#include "worker/optim/shards.h"

namespace stemma::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

constexpr int64_t kPlenty = int64_t{1} << 40;

internal::v1::Save SaveOf(const std::string& folder) {
  internal::v1::Save save;
  save.set_id("id-" + folder);
  save.set_folder(folder);
  return save;
}

class CheckpointSaverTest : public ::testing::Test {
 protected:
  void SetUp() override { MakeModel({.hidden = 24, .layers = 2, .ffn = 20, .vocab = 60}); }

  void MakeModel(const SyntheticShape& shape) {
    fs::remove_all(folder_ / "model");
    const ModelConfig config = SyntheticModel(shape);
    ASSERT_THAT(WriteRandomModel(config, {.max_shard_bytes = 20'000}, folder_ / "model"), IsOk());
    auto directory = OpenModelDirectory(folder_ / "model");
    ASSERT_THAT(directory, IsOk());
    directory_ = *directory;
    ASSERT_GE(directory_.shards.size(), 3u);
    Load(at::kBFloat16, at::kCPU);
  }

  // Weights whose moments are not zeros either.
  void Load(at::ScalarType run_dtype, at::Device device) {
    auto weights = LoadWeights(directory_, WholeModel(directory_.config), run_dtype, device, {});
    ASSERT_THAT(weights, IsOk());
    weights_ = *std::move(weights);
    double number = 0;
    for (Parameter& p : weights_.parameters) {
      p.exp_avg.copy_(at::arange(p.exp_avg.numel(), at::kDouble).view(p.exp_avg.sizes()).add_(++number));
      p.exp_avg_sq.copy_(p.exp_avg.mul(-0.5));
    }
  }

  std::unique_ptr<CheckpointSaver> MakeSaver(int64_t available_bytes = kPlenty, int64_t ranks_of_memory = 1) {
    return std::make_unique<CheckpointSaver>(weights_, directory_, AllRanges(weights_.parameters),
                                             SaverOptions{.checkpoints = folder_ / "checkpoints",
                                                          .rank = 0,
                                                          .ranks_of_memory = ranks_of_memory,
                                                          .available_bytes = [=] { return available_bytes; }});
  }
  std::string Target(const std::string& folder) const {
    fs::create_directories(folder_ / "checkpoints/" + folder + "/optim");
    return folder_ / "checkpoints/" + folder;
  }
  // Returns the files of a save that must be made.
  std::map<std::string, std::string> Saved(CheckpointSaver& saver, const std::string& folder, uint64_t staged_bytes) {
    const std::string target = Target(folder);
    SavedAnswers answers;
    EXPECT_THAT(saver.Save(SaveOf(folder), WeightsDigest(weights_), answers.Functions()), IsOk());
    EXPECT_EQ(answers.staged().staged_bytes(), staged_bytes);
    EXPECT_EQ(answers.staged().id(), "id-" + folder);
    const internal::v1::SaveDone done = answers.WaitForDone();
    EXPECT_FALSE(done.has_failure()) << done.failure().ShortDebugString();
    EXPECT_EQ(done.weights_digest(), WeightsDigest(weights_));
    ExpectWholeParts(target, {done.parts().begin(), done.parts().end()});
    return ContentsOf(target);
  }
  uint64_t StateBytes() const { return static_cast<uint64_t>(3 * 4 * directory_.config.num_parameters()); }

  const FileCallsGuard guard_;
  const TempFolder folder_;
  ModelDirectory directory_;
  Weights weights_;
};

TEST_F(CheckpointSaverTest, WithoutRoomForTheCopyTheFilesAreTheSame) {
  MakeModel({.hidden = 96, .layers = 1, .ffn = 20, .vocab = 3000});  // beyond what is copied or written at a time
  const auto staged = Saved(*MakeSaver(), "staged", StateBytes());
  EXPECT_EQ(staged.size(), 3 * directory_.shards.size() + 2);
  const auto just_enough = static_cast<int64_t>(static_cast<double>(StateBytes()) * 1.1);
  EXPECT_TRUE(Saved(*MakeSaver(just_enough + 1), "enough", StateBytes()) == staged);
  EXPECT_TRUE(Saved(*MakeSaver(just_enough - 1), "direct", 0) == staged) << "megabytes, which nobody wants printed";
  EXPECT_TRUE(Saved(*MakeSaver(2 * just_enough + 2, 2), "both", StateBytes()) == staged);
  EXPECT_TRUE(Saved(*MakeSaver(2 * just_enough - 2, 2), "shared", 0) == staged) << "the other rank copies as much";
}

// Where the model has none there is no folder for them either.
TEST_F(CheckpointSaverTest, FurtherChatTemplatesAreSavedWhereTheModelHasSome) {
  const auto without = Saved(*MakeSaver(), "without", StateBytes());
  EXPECT_FALSE(fs::exists(folder_ / "checkpoints/without/additional_chat_templates"));
  fs::create_directory(folder_ / "model/additional_chat_templates");
  const std::string name = "additional_chat_templates/tool_use.jinja", empty = "additional_chat_templates/none.jinja";
  ASSERT_THAT(WriteFile(folder_ / ("model/" + name), "{{ tools }}"), IsOk());
  ASSERT_THAT(WriteFile(folder_ / ("model/" + empty), ""), IsOk());
  directory_ = *OpenModelDirectory(folder_ / "model");
  auto with = Saved(*MakeSaver(), "with", StateBytes());
  EXPECT_EQ(with[name], "{{ tools }}");
  EXPECT_EQ(with.erase(name) + with.erase(empty), 2u);
  EXPECT_TRUE(with == without);
}

// The writer reads host memory only; the states of a device come there as a copy, or piece by piece.
TEST_F(CheckpointSaverTest, StatesOfADeviceAreCopied) {
  const auto expected = Saved(*MakeSaver(), "host", StateBytes());
  const Backend device = MakeFakeDeviceBackend();
  Load(at::kBFloat16, device.device);
  EXPECT_EQ(Saved(*MakeSaver(), "staged", StateBytes()), expected);
  EXPECT_EQ(Saved(*MakeSaver(0), "direct", 0), expected);
}

TEST_F(CheckpointSaverTest, EveryFileIsSynced) {
  TakeSyncedFiles();
  std::vector<std::string> names;
  for (const auto& [name, content] : Saved(*MakeSaver(), "c", StateBytes())) names.push_back(fs::path(name).filename());
  EXPECT_THAT(TakeSyncedFiles(), UnorderedElementsAreArray(names));
}

TEST_F(CheckpointSaverTest, ASecondSaveIsRefusedUntilTheFirstIsDone) {
  const auto saver = MakeSaver();
  Target("first");
  Target("second");
  SavedAnswers first, second;
  for (const char* place : {"checkpoint.part_written", "checkpoint.before_done"}) {
    const HeldPlace held(folder_ / "failpoints", place, 0);
    SavedAnswers answers;
    ASSERT_THAT(saver->Save(SaveOf("first"), WeightsDigest(weights_), answers.Functions()), IsOk());
    held.WaitUntilReached();
    EXPECT_THAT(saver->Save(SaveOf("second"), WeightsDigest(weights_), second.Functions()),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("checkpoint first is still being written")));
    EXPECT_EQ(answers.done_count(), 0u);
    held.LetGo();
    EXPECT_FALSE(answers.WaitForDone().has_failure());
  }
  // Told that it is done, the server may ask for the next at once.
  SaveAnswers functions = first.Functions();
  absl::Status from_done = absl::UnknownError("not asked");
  functions.done = [&](const internal::v1::SaveDone& done) {
    from_done = saver->Save(SaveOf("second"), WeightsDigest(weights_), second.Functions());
    first.Functions().done(done);
  };
  ASSERT_THAT(saver->Save(SaveOf("first"), WeightsDigest(weights_), functions), IsOk());
  first.WaitForDone();
  ASSERT_THAT(from_done, IsOk());
  EXPECT_FALSE(second.WaitForDone().has_failure());
}

TEST_F(CheckpointSaverTest, AFullDiskFailsTheSaveAndNothingElse) {
  const auto saver = MakeSaver(), direct = MakeSaver(0);
  const std::string digest = WeightsDigest(weights_);
  for (const auto& [file, error, reason] :
       {std::tuple(directory_.shards[1].file_name, ENOSPC, Reason::kDiskFull),
        {"optim/exp_avg-" + directory_.shards[0].file_name, EDQUOT, Reason::kDiskFull},
        {std::string("config.json"), EFBIG, Reason::kFileTooLarge}}) {
    const std::string name = "f" + std::to_string(error), path = Target(name);
    FailWritesOf(file, error, /*bytes_before=*/100);
    SavedAnswers answers;
    ASSERT_THAT(saver->Save(SaveOf(name), WeightsDigest(weights_), answers.Functions()), IsOk());
    const internal::v1::SaveDone done = answers.WaitForDone();
    EXPECT_EQ(done.id(), "id-" + name);
    EXPECT_TRUE(HasReason(FromFailure(done.failure()), reason)) << done.failure().ShortDebugString();
    EXPECT_THAT(done.failure().message(), HasSubstr(file));
    EXPECT_EQ(done.parts_size(), 0);
    SavedAnswers none;
    FailWritesOf(file, error, /*bytes_before=*/100);
    EXPECT_TRUE(HasReason(direct->Save(SaveOf(name), WeightsDigest(weights_), none.Functions()), reason));
    EXPECT_EQ(none.done_count(), 0u) << "neither answer is given where Save itself failed";
    FailWritesOf("", 0);
  }
  FailSyncsOf("model.safetensors.index.json", EIO);
  SavedAnswers answers;
  Target("synced");
  ASSERT_THAT(saver->Save(SaveOf("synced"), WeightsDigest(weights_), answers.Functions()), IsOk());
  EXPECT_THAT(answers.WaitForDone().failure().message(), HasSubstr("fsync"));
  FailSyncsOf("", 0);
  EXPECT_EQ(WeightsDigest(weights_), digest);
  Saved(*saver, "room", StateBytes());
  Saved(*direct, "room2", 0);
}

TEST_F(CheckpointSaverTest, AFolderIsANameAndIsThere) {
  const auto saver = MakeSaver();
  SavedAnswers answers;
  for (const char* name : {"", "../model", "a/b", ".", "/etc"}) {
    EXPECT_THAT(saver->Save(SaveOf(name), WeightsDigest(weights_), answers.Functions()), Invalid("is not a valid name"))
        << name;
  }
  SavedAnswers missing;
  ASSERT_THAT(saver->Save(SaveOf("missing"), WeightsDigest(weights_), missing.Functions()), IsOk());
  EXPECT_THAT(FromFailure(missing.WaitForDone().failure()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("checkpoints/missing/model-00001")));
}

TEST_F(CheckpointSaverTest, ASourceThatChangedMakesNoCheckpoint) {
  const std::string config = folder_ / "model/config.json", text = *ReadFile(config, kTestFileBytesMax);
  std::string other = text;
  other.replace(other.find("\"rms_norm_eps\": "), 16, "\"rms_norm_eps\": 1");
  for (const auto& [content, why] :
       {std::pair(other, "rms_norm_eps is another one"), {std::string("[]"), "not an object"}}) {
    ASSERT_THAT(WriteFile(config, content), IsOk());
    SavedAnswers answers;
    Target("c");
    const auto saver = MakeSaver();
    ASSERT_THAT(saver->Save(SaveOf("c"), WeightsDigest(weights_), answers.Functions()), IsOk());
    EXPECT_THAT(FromFailure(answers.WaitForDone().failure()), Invalid(why));
  }
}

// The worker ends: a disk that is slow, here by a byte at a time, does not hold it.
TEST_F(CheckpointSaverTest, AnEngineThatEndsGivesTheSaveUp) {
  auto saver = MakeSaver();
  Target("c");
  CutWrites(1);
  SavedAnswers answers;
  ASSERT_THAT(saver->Save(SaveOf("c"), WeightsDigest(weights_), answers.Functions()), IsOk());
  saver = nullptr;
  ASSERT_EQ(answers.done_count(), 1u) << "the thread has ended with its saver";
  EXPECT_THAT(FromFailure(answers.WaitForDone().failure()),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("the worker ends")));
}

// An exception would end the thread of saves, and the worker with it.
TEST_F(CheckpointSaverTest, AHostWithoutMemoryIsTheSavesAnswer) {
  CheckpointFiles files;
  files.folder = Target("c");
  files.shares.emplace_back().name = "model.safetensors";
  files.shares[0].pieces.emplace_back().bytes.length = 1;
  const PieceReader full = [](StateKind, const StatePiece&, const ByteSink&) -> absl::Status {
    throw std::bad_alloc();
  };
  const std::atomic<bool> cancelled = false;
  EXPECT_THAT(WriteCheckpointFiles(files, full, cancelled).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory")));
}

}  // namespace
}  // namespace stemma::testing
