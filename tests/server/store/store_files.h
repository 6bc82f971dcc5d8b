// What tests of the journal and the spool share: folders of files, and rows that are drawn from a seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/base/split_mix.h"
#include "gtest/gtest.h"
#include "server/store/journal.h"
#include "tests/server/store/file_bytes.h"

namespace stemma::server {

// The regular files of a folder, by name.
using Files = std::map<std::string, std::string>;

inline Files FilesOf(const std::string& folder) {
  Files files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().filename().string()] = BytesOf(entry.path().string());
  }
  return files;
}

// Leaves these files in the folder, and no others.
inline void SetFiles(const std::string& folder, const Files& files) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const auto& [name, bytes] : files) SetBytes(folder + "/" + name, bytes);
}

// The body of row n: a few bytes, or up to some pages.
inline std::string DrawnBody(uint64_t seed, uint64_t n) {
  SplitMix64 random(seed * 1000003 + n);
  const uint64_t size = random.Next() % 8 == 0 ? random.Next() % 20000 : random.Next() % 200;
  std::string body(size, '\0');
  for (char& c : body) c = static_cast<char>(random.Next());
  return body;
}

// Expects rows 1 to `count` of that seed, neither more nor others.
inline void ExpectDrawnRows(const std::vector<JournalEntry>& rows, uint64_t seed, uint64_t count) {
  ASSERT_EQ(rows.size(), count) << "seed " << seed;
  for (uint64_t i = 0; i < count; ++i) {
    ASSERT_EQ(rows[i].n, i + 1) << "seed " << seed;
    ASSERT_EQ(rows[i].body, DrawnBody(seed, i + 1)) << "seed " << seed << ", row " << i + 1;
  }
}

}  // namespace stemma::server
