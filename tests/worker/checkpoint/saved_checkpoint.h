// What tests of checkpoints share: models of drawn shapes, answers of a save, and what its parts are held to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/mutex.h"
#include "common/model/model_directory.h"
#include "common/model/model_init.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "worker/checkpoint/checkpoint_layout.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/save_answers.h"

namespace stemma::testing {

inline constexpr uint64_t kTestFileBytesMax = 64 << 20;

// Draws from a seed that a failing test prints.
class Draws {
 public:
  explicit Draws(uint32_t seed) : random_(seed) {}
  int64_t operator()(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }

 private:
  std::mt19937 random_;
};

// A model of any family and shape, tied or not, as one file or several; of a shape that `tp` ranks can share, K/V heads
// that several of them hold among them.
inline ModelConfig DrawModel(Draws& draw, int64_t tp = 1) {
  const int64_t kv_heads = tp % 2 == 0 && draw(0, 1) == 1 ? draw(1, 2) : tp * draw(1, 2);
  ModelConfig config = SyntheticModel({.hidden = 2 * draw(2, 20),
                                       .layers = draw(1, 3),
                                       .heads = std::max(kv_heads, tp) * draw(1, 2),
                                       .kv_heads = kv_heads,
                                       .head_size = 4,
                                       .ffn = tp * draw(1, 30 / tp),
                                       .vocab = draw(tp + 1, 90)});
  config.SetFamily(Families()[static_cast<size_t>(draw(0, static_cast<int64_t>(Families().size()) - 1))]);
  config.tie_word_embeddings = draw(0, 1) == 1;
  return config;
}

// Draws into how many sets with experts of their own so many tensor-parallel ranks are divided: of the drawn model's
// eight experts, as many each.
inline int64_t DrawEp(Draws& draw, const ModelConfig& config, int64_t tp) {
  if (!config.experts) return 1;
  return tp % 4 == 0 ? int64_t{1} << draw(0, 2) : tp % 2 == 0 ? draw(1, 2) : 1;
}

inline ModelInitOptions DrawInit(Draws& draw) {
  ModelInitOptions options;
  options.seed = static_cast<uint64_t>(draw(1, 1000));
  options.norm_std = 0.1;
  options.max_shard_bytes = draw(0, 1) == 1 ? static_cast<uint64_t>(draw(2'000, 20'000)) : 0;
  if (draw(0, 1) == 1) options.eos_token_id = 1;
  const safetensors::Dtype dtypes[] = {safetensors::Dtype::kF32, safetensors::Dtype::kF64, safetensors::Dtype::kBF16};
  options.dtype = dtypes[draw(0, 2)];
  return options;
}

// The answers of one save. Any thread.
class SavedAnswers {
 public:
  SaveAnswers Functions() {
    return {[this](internal::v1::SaveStaged staged) {
              MutexLock lock(&mutex_);
              EXPECT_TRUE(done_.empty()) << "the second answer came first";
              staged_.push_back(std::move(staged));
            },
            [this](internal::v1::SaveDone done) {
              MutexLock lock(&mutex_);
              done_.push_back(std::move(done));
            }};
  }
  // The one that came.
  internal::v1::SaveStaged staged() {
    MutexLock lock(&mutex_);
    EXPECT_EQ(staged_.size(), 1u);
    return staged_.at(0);
  }
  internal::v1::SaveDone WaitForDone() {
    MutexLock lock(&mutex_);
    const auto came = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !done_.empty(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(came, absl::Minutes(2)));
    EXPECT_EQ(done_.size(), 1u);
    return done_.empty() ? internal::v1::SaveDone() : done_[0];
  }
  size_t done_count() {
    MutexLock lock(&mutex_);
    return done_.size();
  }

 private:
  Mutex mutex_;
  std::vector<internal::v1::SaveStaged> staged_ ABSL_GUARDED_BY(mutex_);
  std::vector<internal::v1::SaveDone> done_ ABSL_GUARDED_BY(mutex_);
};

// File name in the folder -> content, of all files in it and below.
inline std::map<std::string, std::string> ContentsOf(const std::filesystem::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    contents[entry.path().lexically_relative(folder).string()] =
        ReadFile(entry.path().string(), kTestFileBytesMax).value();
  }
  return contents;
}

// The parts of all ranks hold every byte of every file once, and their digests are those of the bytes that are there.
inline void ExpectWholeParts(const std::filesystem::path& folder, const CheckpointParts& parts) {
  const std::map<std::string, std::string> contents = ContentsOf(folder);
  std::map<std::string, std::string> seen;  // a mark for each byte
  std::set<std::pair<std::string, uint32_t>> writers;
  for (const auto& [name, content] : contents) seen[name] = std::string(content.size(), '0');
  for (const internal::v1::CheckpointPart& part : parts) {
    ASSERT_TRUE(contents.contains(part.file())) << part.file();
    EXPECT_TRUE(writers.emplace(part.file(), part.rank()).second) << "two parts of rank " << part.rank();
    Sha256 digest;
    uint64_t end = 0;
    bool had_runs = false;
    for (const internal::v1::ByteRange& range : part.ranges()) {
      const bool has_runs = range.runs() > 0;
      EXPECT_TRUE(end == 0 || range.begin() > end || (range.begin() == end && (had_runs || has_runs)))
          << part.file() << ": ranges ascend, and touching ones are merged";
      had_runs = has_runs;
      for (uint64_t run = 0; run < std::max<uint64_t>(range.runs(), 1); ++run) {
        const uint64_t begin = range.begin() + run * range.stride();
        end = begin + range.bytes();
        ASSERT_LE(end, contents.at(part.file()).size()) << part.file();
        digest.Update(std::string_view(contents.at(part.file())).substr(begin, range.bytes()));
        for (uint64_t i = begin; i < end; ++i) ++seen[part.file()][i];
      }
    }
    EXPECT_EQ(part.sha256(), digest.FinishHex()) << part.file() << " of rank " << part.rank();
  }
  for (const auto& [name, marks] : seen) {
    EXPECT_EQ(marks.find_first_not_of('1'), std::string::npos) << name << ": a byte is written never, or twice";
    EXPECT_TRUE(!contents.at(name).empty() || writers.lower_bound({name, 0}) != writers.end()) << name;
  }
}

}  // namespace stemma::testing
