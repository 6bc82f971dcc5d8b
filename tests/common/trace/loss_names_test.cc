// Names of losses, and the table of what each mode reads held against docs/losses.md.
#include "common/trace/loss_names.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LossNamesTest, EveryListedNameParses) {
  for (const std::string_view name : LossModeNames()) EXPECT_TRUE(ParseLossMode(name).ok()) << name;
  for (const std::string_view name : AggModeNames()) EXPECT_TRUE(ParseAggMode(name).ok()) << name;
  for (const std::string_view name : KlTypeNames()) EXPECT_TRUE(ParseKlType(name).ok()) << name;
}

TEST(LossNamesTest, NamesMeanTheirModes) {
  EXPECT_EQ(ParseLossMode("vanilla").value(), LossMode::kVanilla);
  EXPECT_EQ(ParseLossMode("gspo").value(), LossMode::kGspo);
  EXPECT_EQ(ParseLossMode("cispo").value(), LossMode::kCispo);
  EXPECT_EQ(ParseLossMode("importance_sampling").value(), LossMode::kImportanceSampling);
  EXPECT_EQ(ParseLossMode("cross_entropy").value(), LossMode::kCrossEntropy);
  EXPECT_EQ(ParseLossMode("gpg").value(), LossMode::kGpg);
  EXPECT_EQ(ParseAggMode("token-mean").value(), AggMode::kTokenMean);
  EXPECT_EQ(ParseAggMode("token-sum").value(), AggMode::kTokenSum);
  EXPECT_EQ(ParseAggMode("seq-mean-token-sum").value(), AggMode::kSeqMeanTokenSum);
  EXPECT_EQ(ParseAggMode("seq-mean-token-sum-norm").value(), AggMode::kSeqMeanTokenSumNorm);
  EXPECT_EQ(ParseAggMode("seq-mean-token-mean").value(), AggMode::kSeqMeanTokenMean);
  EXPECT_EQ(ParseAggMode("prompt-mean").value(), AggMode::kPromptMean);
}

TEST(LossNamesTest, KlTypesHaveTwoSpellingsAndAPlus) {
  const std::map<std::string, KlType> expected = {
      {"kl", KlType::kK1}, {"k1", KlType::kK1}, {"abs", KlType::kAbs},       {"mse", KlType::kK2},
      {"k2", KlType::kK2}, {"k3", KlType::kK3}, {"low_var_kl", KlType::kK3},
  };
  for (const auto& [name, type] : expected) {
    EXPECT_EQ(ParseKlType(name).value().type, type) << name;
    EXPECT_FALSE(ParseKlType(name).value().straight_through) << name;
    EXPECT_EQ(ParseKlType(name + "+").value().type, type) << name;
    EXPECT_TRUE(ParseKlType(name + "+").value().straight_through) << name;
  }
  EXPECT_EQ(KlTypeNames().size(), 2 * expected.size());
}

TEST(LossNamesTest, AnUnknownNameListsThoseThatAreKnown) {
  const absl::Status status = ParseLossMode("ppo").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is \"ppo\", must be one of: vanilla, gspo, cispo"));
  EXPECT_FALSE(ParseAggMode("token_mean").ok());
  EXPECT_FALSE(ParseKlType("full").ok());
  EXPECT_FALSE(ParseKlType("+").ok());
  EXPECT_FALSE(ParseLossMode("").ok());
}

std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line.substr(line.find('|') + 1));
  for (std::string cell; std::getline(stream, cell, '|');) {
    const size_t begin = cell.find_first_not_of(' ');
    if (begin != std::string::npos) cells.push_back(cell.substr(begin, cell.find_last_not_of(' ') - begin + 1));
  }
  return cells;
}

// Rows of the table "What a mode needs and reads": mode -> the other cells.
std::map<std::string, std::vector<std::string>> DocumentedRequirements() {
  std::map<std::string, std::vector<std::string>> rows;
  std::ifstream file(STEMMA_LOSSES_MD);
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) inside = line == "### What a mode needs and reads";
    if (!inside || !line.starts_with("| `")) continue;
    std::vector<std::string> cells = Cells(line);
    const std::string mode = cells.front().substr(1, cells.front().size() - 2);
    rows[mode] = {cells.begin() + 1, cells.end()};
  }
  return rows;
}

TEST(LossNamesTest, TheDocumentedTableIsTheOneInForce) {
  const auto documented = DocumentedRequirements();
  EXPECT_EQ(documented.size(), LossModeNames().size());
  for (const auto& [name, cells] : documented) {
    const LossModeRequirements reads = RequirementsOf(ParseLossMode(name).value());
    const auto needed = [](bool value) { return value ? "needed" : "–"; };
    const auto optional = [](bool value) { return value ? "optional" : "–"; };
    EXPECT_THAT(cells, ElementsAre(needed(reads.needs_clip), optional(reads.reads_clip_c), needed(reads.needs_old),
                                   needed(reads.needs_advantage), needed(reads.needs_loss_weights),
                                   optional(reads.reads_importance_weights)))
        << name;
  }
}

// Its ratio is a mean over the response: a chunk of the head alone does not hold it.
TEST(LossNamesTest, OnlyGspoNeedsWholeRollouts) {
  for (const std::string_view name : LossModeNames()) {
    EXPECT_EQ(NeedsWholeRollouts(ParseLossMode(name).value()), name == "gspo") << name;
  }
}

}  // namespace
}  // namespace stemma
