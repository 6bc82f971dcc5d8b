// What the votes of several ranks say together.
#include "server/protocol/vote_merge.h"

#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/mesh.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/step_sums.h"

namespace stemma::testing {
namespace {

using internal::v1::Vote;
using ::testing::SizeIs;

Vote No(internal::v1::NoVoteReason reason, const std::string& message) {
  Vote vote;
  vote.set_no_reason(reason);
  vote.set_message(message);
  return vote;
}

// Field i of StepSums is (i + 1) * scale.
Vote Yes(double scale) {
  Vote vote;
  vote.set_yes(true);
  vote.set_grad_norm_squared(scale);
  internal::v1::StepSums& sums = *vote.mutable_sums();
  for (int i = 0; i < sums.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = sums.GetDescriptor()->field(i);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
      sums.GetReflection()->SetDouble(&sums, field, (i + 1) * scale);
    } else {
      sums.GetReflection()->SetUInt64(&sums, field, static_cast<uint64_t>((i + 1) * scale));
    }
  }
  return vote;
}

// By field, the rule that stands beside it: add, total, max or min.
std::map<std::string, std::string> RulesInProto() {
  std::ifstream file(STEMMA_WORKER_PROTO);
  const std::regex rule(R"(^  (?:double|uint64) (\w+) = \d+; +// (add|total|max|min)\b.*)");
  std::map<std::string, std::string> rules;
  std::smatch match;
  bool in_sums = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("message ", 0) == 0) in_sums = line == "message StepSums {";
    if (in_sums && std::regex_match(line, match, rule)) rules[match[1]] = match[2];
  }
  return rules;
}

TEST(VoteMergeTest, EveryNumberFollowsTheRuleBesideItsField) {
  const std::map<std::string, double> merged =
      SumsByName(MergeVotes(std::vector<Vote>{Yes(10), Yes(1), Yes(100)}).sums());
  const std::map<std::string, double> one = SumsByName(Yes(1).sums());
  const std::map<std::string, std::string> rules = RulesInProto();
  ASSERT_THAT(rules, SizeIs(one.size())) << "each field of StepSums has its rule";
  for (const auto& [name, rule] : rules) {
    EXPECT_EQ(merged.at(name), one.at(name) * (rule == "max" ? 100 : rule == "min" ? 1 : 111)) << name << ": " << rule;
  }
}

// The first rank of a copy's last stage alone tells what is added.
TEST(VoteMergeTest, NumbersOfACopyAreThoseThatAreAdded) {
  const v1::Mesh mesh = MakeMesh({.dp = 2, .pp = 2, .tp = 2});
  for (const auto& [name, rule] : RulesInProto()) {
    Vote vote;
    internal::v1::StepSums& one = *vote.mutable_sums();
    const auto* field = one.GetDescriptor()->FindFieldByName(name);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
      one.GetReflection()->SetDouble(&one, field, -0.5);
    } else {
      one.GetReflection()->SetUInt64(&one, field, 1);
    }
    for (const uint32_t silent : {0, 1, 3, 4, 5, 7}) {
      const absl::Status told = CheckVote(mesh, {}, silent, vote);
      EXPECT_EQ(told.ok(), rule != "add") << name;
      const bool named = absl::StrContains(std::string(told.message()), "vote.sums." + name + " is told by rank");
      EXPECT_EQ(named, !told.ok()) << told;
    }
    for (const uint32_t speaker : {2, 6}) EXPECT_TRUE(CheckVote(mesh, {}, speaker, vote).ok()) << name;
  }
  EXPECT_TRUE(CheckVote(mesh, {}, 1, Vote()).ok());
  EXPECT_TRUE(CheckVote(MakeMesh({.dp = 4}), {}, 1, Yes(1)).ok()) << "each rank is a copy";
}

TEST(VoteMergeTest, SpansStayWithTheirRanks) {
  Vote first = Yes(1);
  first.mutable_spans()->add_spans();
  EXPECT_FALSE(MergeVotes(std::vector<Vote>{first, Yes(1)}).has_spans());
}

TEST(VoteMergeTest, NormsAreAdded) {
  const Vote merged = MergeVotes(std::vector<Vote>{Yes(1), Yes(4), Yes(0.5)});
  EXPECT_TRUE(merged.yes());
  EXPECT_EQ(merged.grad_norm_squared(), 5.5);
}

TEST(VoteMergeTest, AStepIsEmptyWhereItIsOnEveryRank) {
  Vote empty = Yes(0);
  empty.set_empty(true);
  EXPECT_TRUE(MergeVotes(std::vector<Vote>{empty, empty}).empty());
  EXPECT_FALSE(MergeVotes(std::vector<Vote>{empty, Yes(1)}).empty());
  EXPECT_FALSE(MergeVotes(std::vector<Vote>{Yes(1), empty}).empty());
}

TEST(VoteMergeTest, OneRanksNoIsTheStepsWithItsOwnReason) {
  const Vote peer = No(internal::v1::PEER, "another rank could not");
  const Vote merged = MergeVotes(std::vector<Vote>{peer, No(internal::v1::OUT_OF_MEMORY, "of layer 3"), peer});
  EXPECT_FALSE(merged.yes());
  EXPECT_EQ(merged.no_reason(), internal::v1::OUT_OF_MEMORY);
  EXPECT_EQ(merged.message(), "rank 1: of layer 3");
  const Vote late = MergeVotes(std::vector<Vote>{Yes(1), Yes(1), No(internal::v1::NONFINITE, "embedding")});
  EXPECT_FALSE(late.yes());
  EXPECT_EQ(late.message(), "rank 2: embedding");
}

TEST(VoteMergeTest, ANoWithoutAReasonOfItsOwnIsStillANo) {
  const Vote merged = MergeVotes(std::vector<Vote>{Yes(1), No(internal::v1::PEER, "another rank could not")});
  EXPECT_FALSE(merged.yes());
  EXPECT_EQ(merged.no_reason(), internal::v1::PEER);
}

TEST(VoteMergeTest, OneVoteStaysAsItIs) {
  for (const Vote& vote : {Yes(3), No(internal::v1::INTERNAL, "why")}) {
    EXPECT_EQ(MergeVotes(std::vector<Vote>{vote}).SerializeAsString(), vote.SerializeAsString());
  }
}

}  // namespace
}  // namespace stemma::testing
