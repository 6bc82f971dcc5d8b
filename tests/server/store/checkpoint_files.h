// What tests of checkpoints share: a save whose ranks wrote interleaved ranges, drawn from a seed.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/digest.h"
#include "common/base/split_mix.h"
#include "server/store/checkpoint_store.h"
#include "tests/server/store/file_bytes.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {

inline std::string DigestOfBytes(const std::string& bytes) {
  Sha256 sha;
  sha.Update(bytes);
  return sha.FinishHex();
}

inline std::string DrawnContent(uint64_t seed, uint64_t bytes) {
  SplitMix64 random(seed);
  std::string content(bytes, '\0');
  for (char& c : content) c = static_cast<char>(random.Next());
  return content;
}

// The regular files below a folder, by path from there.
inline std::map<std::string, std::string> TreeOf(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    files[std::filesystem::relative(entry.path(), folder).string()] = BytesOf(entry.path().string());
  }
  return files;
}

struct DrawnSave {
  internal::v1::CheckpointManifest manifest;
  std::map<std::string, std::string> contents;  // by name, as parts have it
};

inline void AddPart(DrawnSave& save, const std::string& file, uint32_t rank,
                    const std::vector<std::pair<uint64_t, uint64_t>>& ranges) {
  internal::v1::CheckpointPart& part = *save.manifest.add_parts();
  part.set_file(file);
  part.set_rank(rank);
  std::string bytes;
  for (const auto& [begin, count] : ranges) {
    internal::v1::ByteRange& range = *part.add_ranges();
    range.set_begin(begin);
    range.set_bytes(count);
    bytes += save.contents[file].substr(begin, count);
  }
  part.set_sha256(DigestOfBytes(bytes));
}

// Adds a part of a matrix that lies in the file row by row: some of its columns, after what precedes it where `front`.
inline void AddColumns(DrawnSave& save, const std::string& file, uint32_t rank, bool front,
                       const internal::v1::ByteRange& columns) {
  internal::v1::CheckpointPart& part = *save.manifest.add_parts();
  part.set_file(file);
  part.set_rank(rank);
  std::string bytes;
  if (front) {
    part.add_ranges()->set_bytes(columns.begin());
    bytes = save.contents[file].substr(0, columns.begin());
  }
  *part.add_ranges() = columns;
  for (uint64_t run = 0; run < columns.runs(); ++run) {
    bytes += save.contents[file].substr(columns.begin() + run * columns.stride(), columns.bytes());
  }
  part.set_sha256(DigestOfBytes(bytes));
}

inline internal::v1::ByteRange Columns(uint64_t begin, uint64_t bytes, uint64_t runs, uint64_t stride) {
  internal::v1::ByteRange columns;
  columns.set_begin(begin);
  columns.set_bytes(bytes);
  columns.set_runs(runs);
  columns.set_stride(stride);
  return columns;
}

// Two ranks wrote the weights in turns, each its own moments, rank 0 an empty file and a chat template too.
inline DrawnSave MakeSave(const std::string& name, uint64_t seed, uint64_t step, uint64_t weight_bytes = 10000) {
  DrawnSave save;
  save.manifest.set_name(name);
  save.manifest.set_lineage("lineage-1");
  save.manifest.set_step(step);
  save.manifest.set_weight_version(step + 7);
  save.manifest.set_journal_row(uint64_t{1} << 60);
  save.manifest.set_saved_at_s(1234.5);
  save.manifest.mutable_config()->set_model("/models/\"m\"\xc3\xa4");
  save.contents = {{"model.safetensors", DrawnContent(seed, weight_bytes)},
                   {"config.json", DrawnContent(seed + 1, 300)},
                   {"empty", ""},
                   {"additional_chat_templates/tool_use.jinja", DrawnContent(seed + 4, 200)},
                   {"optim/rank-0.safetensors", DrawnContent(seed + 2, 5000)},
                   {"optim/rank-1.safetensors", DrawnContent(seed + 3, 4000)}};
  const uint64_t third = weight_bytes / 3;
  AddPart(save, "model.safetensors", 0, {{0, third}, {2 * third, weight_bytes - 2 * third}});
  AddPart(save, "optim/rank-1.safetensors", 1, {{0, 4000}});
  AddPart(save, "model.safetensors", 1, {{third, third}});
  AddPart(save, "optim/rank-0.safetensors", 0, {{0, 5000}});
  AddPart(save, "config.json", 0, {{0, 300}});
  AddPart(save, "empty", 0, {});
  AddPart(save, "additional_chat_templates/tool_use.jinja", 0, {{0, 200}});
  return save;
}

// Begins it and writes its files; returns the temporary name.
inline std::string WriteSave(const CheckpointStore& store, const std::string& directory, const DrawnSave& save) {
  absl::StatusOr<std::string> temporary = store.Begin(save.manifest.name());
  EXPECT_THAT(temporary, testing::IsOk());
  if (!temporary.ok()) return "";
  const std::string folder = directory + "/checkpoints/" + *temporary + "/";
  for (const auto& [name, bytes] : save.contents) {
    if (name.starts_with(kChatTemplatesFolder)) std::filesystem::create_directory(folder + kChatTemplatesFolder);
    SetBytes(folder + name, bytes);
  }
  return *temporary;
}

inline absl::StatusOr<StoredCheckpoint> CommitSave(const CheckpointStore& store, const std::string& directory,
                                                   const DrawnSave& save, const std::string& client_state) {
  return store.Commit(WriteSave(store, directory, save), save.manifest, client_state);
}

}  // namespace stemma::server
