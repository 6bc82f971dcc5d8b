#include "common/base/nearest.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace stemma {
namespace {

const std::vector<std::string> kOptions = {"--help", "--server", "--limit", "--lr-schedule", "--schedule", "--retries"};

TEST(NearestTest, TypingMistakesFindTheirWord) {
  EXPECT_EQ(Nearest("--limt", kOptions), "--limit");
  EXPECT_EQ(Nearest("--limti", kOptions), "--limit");
  EXPECT_EQ(Nearest("-limit", kOptions), "--limit");
  EXPECT_EQ(Nearest("--sever", kOptions), "--server");
  EXPECT_EQ(Nearest("--shedule", kOptions), "--schedule");
  EXPECT_EQ(Nearest("hepl", kOptions), "--help");
}

TEST(NearestTest, ABeginningFindsTheOnlyWordThatItBegins) {
  EXPECT_EQ(Nearest("--ret", kOptions), "--retries");
  EXPECT_EQ(Nearest("--lr-s", kOptions), "--lr-schedule");
}

TEST(NearestTest, WhatIsFarFromAllFindsNothing) {
  EXPECT_EQ(Nearest("--verbose", kOptions), "");
  EXPECT_EQ(Nearest("--", kOptions), "");
  EXPECT_EQ(Nearest("", kOptions), "");
  EXPECT_EQ(Nearest("--limit", {}), "");
}

// By definition: the shortest way through single edits, searched without a table.
size_t Slow(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  size_t least = std::min(Slow(a.substr(1), b), Slow(a, b.substr(1))) + 1;
  least = std::min(least, Slow(a.substr(1), b.substr(1)) + (a[0] == b[0] ? 0 : 1));
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0]) {
    least = std::min(least, Slow(a.substr(2), b.substr(2)) + 1);
  }
  return least;
}

TEST(NearestTest, TheDistanceIsThatOfASearchThroughAllEdits) {
  std::mt19937 random(20240607);  // the seed: a failure prints both words
  const auto word = [&] {
    std::string text(random() % 7, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int i = 0; i < 300; ++i) {
    const std::string a = word(), b = word();
    EXPECT_EQ(EditDistance(a, b), Slow(a, b)) << a << " " << b;
  }
}

}  // namespace
}  // namespace stemma
