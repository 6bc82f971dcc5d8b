// Groups of a payload stand at their index in the request, whatever chunks they come in; what is not right is refused.
#include "worker/engine/payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace stemma::worker {
namespace {

using internal::v1::PayloadChunk;
using ::testing::HasSubstr;

constexpr char kId[] = "r1";

// One group of a chunk: `prompt_tokens` 0 continues the last one.
struct Piece {
  uint32_t index = 0;
  std::string uid;
  int prompt_tokens = 0;
  std::vector<int> response_tokens;
};

PayloadChunk Chunk(const std::vector<Piece>& pieces, bool last) {
  PayloadChunk chunk;
  chunk.set_id(kId);
  chunk.set_last(last);
  for (const Piece& piece : pieces) {
    chunk.add_group_indices(piece.index);
    v1::PromptGroup& group = *chunk.add_groups();
    group.set_uid(piece.uid);
    group.set_prompt_tokens(std::string(static_cast<size_t>(piece.prompt_tokens) * sizeof(int32_t), 'p'));
    for (const int tokens : piece.response_tokens) {
      group.add_rollouts()->set_response_tokens(std::string(static_cast<size_t>(tokens) * sizeof(int32_t), 'r'));
    }
  }
  return chunk;
}

std::vector<int64_t> PromptTokens(const Payload& payload) {
  std::vector<int64_t> tokens;
  for (const GroupShape& shape : payload.shapes) tokens.push_back(shape.prompt_tokens);
  return tokens;
}

uint64_t ResidentBytes() {
  uint64_t all_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> all_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// In rollouts that are too small for mappings of their own, below something that stays.
TEST(PayloadTest, MemoryOfALargePayloadGoesBackToTheSystem) {
  PayloadStore store;
  for (uint32_t index = 0; index < 64; ++index) {
    ASSERT_TRUE(store.Add(Chunk({{index, "g", 3, std::vector<int>(1024, 250)}}, /*last=*/false)).ok());
  }
  const auto above = std::make_unique<std::string>(1000, 'x');
  const uint64_t before = ResidentBytes();
  store.Drop(kId);
  EXPECT_LT(ResidentBytes(), before - (48u << 20));
  EXPECT_EQ(above->size(), 1000u);
}

TEST(PayloadTest, GroupsStandAtTheirIndices) {
  PayloadStore store;
  ASSERT_TRUE(store.Add(Chunk({{1, "b", 3, {4}}}, /*last=*/false)).ok());
  EXPECT_FALSE(store.FindComplete(kId).ok());
  ASSERT_TRUE(store.Add(Chunk({{1, "b", 0, {5, 6}}, {4, "e", 2, {}}}, /*last=*/false)).ok());
  ASSERT_TRUE(store.Add(Chunk({{4, "e", 0, {7}}}, /*last=*/true)).ok());
  const Payload* payload = store.FindComplete(kId).value_or(nullptr);
  ASSERT_NE(payload, nullptr);
  ASSERT_EQ(payload->groups.size(), 5u);
  EXPECT_EQ(payload->groups[1].uid(), "b");
  EXPECT_EQ(payload->groups[4].uid(), "e");
  EXPECT_EQ(PromptTokens(*payload), (std::vector<int64_t>{0, 3, 0, 0, 2}));
  EXPECT_EQ(payload->shapes[1].response_tokens, (std::vector<int64_t>{4, 5, 6}));
  EXPECT_EQ(payload->shapes[4].response_tokens, (std::vector<int64_t>{7}));
  for (const int hole : {0, 2, 3}) EXPECT_TRUE(payload->shapes[static_cast<size_t>(hole)].response_tokens.empty());
}

TEST(PayloadTest, ARankMayHaveNoGroup) {
  PayloadStore store;
  ASSERT_TRUE(store.Add(Chunk({}, /*last=*/true)).ok());
  ASSERT_TRUE(store.FindComplete(kId).ok());
  EXPECT_TRUE((*store.FindComplete(kId))->groups.empty());
}

// Refused is the chunk, what follows it, and the payload until it is dropped: it never lacks its middle.
void ExpectRefused(const std::vector<Piece>& before, const PayloadChunk& chunk, const std::string& why) {
  PayloadStore store;
  ASSERT_TRUE(store.Add(Chunk(before, /*last=*/false)).ok());
  const absl::Status status = store.Add(chunk);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  EXPECT_FALSE(store.Add(Chunk({{9, "later", 1, {1}}}, /*last=*/true)).ok());
  EXPECT_FALSE(store.FindComplete(kId).ok());
  store.Drop(kId);
  EXPECT_TRUE(store.Add(Chunk({{9, "again", 1, {1}}}, /*last=*/true)).ok());
  EXPECT_TRUE(store.FindComplete(kId).ok());
}

TEST(PayloadTest, WhatHasNoPlaceIsRefused) {
  const std::vector<Piece> three = {{3, "c", 2, {1}}};
  ExpectRefused(three, Chunk({{2, "b", 2, {1}}}, true), "group 2, b, comes after group 3");
  ExpectRefused(three, Chunk({{3, "c", 2, {1}}}, true), "group 3, c, comes after group 3");
  ExpectRefused(three, Chunk({{3, "d", 0, {1}}}, true), "group 3, d, is continued but was not begun");
  ExpectRefused(three, Chunk({{4, "c", 0, {1}}}, true), "group 4, c, is continued but was not begun");
  ExpectRefused(three, Chunk({{2, "c", 0, {1}}}, true), "group 2, c, is continued but was not begun");
  ExpectRefused({}, Chunk({{0, "a", 0, {1}}}, true), "group 0, a, is continued but was not begun");
  ExpectRefused({}, Chunk({{kGroupIndicesMax, "far", 1, {1}}}, true), "is not below 16777216");
  ExpectRefused({}, Chunk({{0xffffffffu, "far", 1, {1}}}, true), "is not below 16777216");
}

TEST(PayloadTest, EachGroupHasItsIndex) {
  PayloadChunk none = Chunk({{0, "a", 1, {1}}}, true), many = none;
  none.clear_group_indices();
  many.add_group_indices(1);
  ExpectRefused({}, none, "1 groups with 0 indices");
  ExpectRefused({}, many, "1 groups with 2 indices");
}

TEST(PayloadTest, ACompletePayloadStays) {
  PayloadStore store;
  ASSERT_TRUE(store.Add(Chunk({{0, "a", 1, {1}}}, /*last=*/true)).ok());
  EXPECT_FALSE(store.Add(Chunk({{1, "b", 1, {1}}}, /*last=*/true)).ok());
  ASSERT_TRUE(store.FindComplete(kId).ok());
  EXPECT_EQ((*store.FindComplete(kId))->groups.size(), 1u);
}

}  // namespace
}  // namespace stemma::worker
