// The files of the spool that a row of the journal makes useless: they go with it, and no others do.
#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/server/protocol/history_rows.h"

namespace stemma::server {
namespace {

using google::protobuf::util::MessageDifferencer;
using internal::v1::JournalRow;
using internal::v1::JournalState;

TEST(KeptFilesTest, AFileOfTheSpoolGoesWithTheRowThatMakesItUseless) {
  Outbox out;
  out.Begin(absl::UnixEpoch());
  History history({.replays = true, .requests_kept = kRequestsKept}, &out);
  history.BeginLineage(Begun("L", 1));
  const auto removed = [&out] {
    std::vector<std::string> names;
    for (const Action& action : out.Take().actions) {
      if (const auto* remove = std::get_if<RemoveSpoolAction>(&action)) names.push_back(remove->name);
    }
    return names;
  };
  history.Accept(Accepted("a", true));
  history.Commit(Committed("a", 0, 1));
  history.Apply(Applied("a", 0, 1));
  history.Finish(Finished("a", v1::DONE));
  history.Accept(Accepted("b", true));
  EXPECT_TRUE(removed().empty()) << "a's step may have to be computed again";
  history.Finish(Finished("b", v1::FAILED));
  EXPECT_EQ(removed(), std::vector<std::string>{"spool-b"});
  internal::v1::LostWeights lost;
  lost.set_lineage("L");
  lost.set_step(1);
  internal::v1::LineageBegun begun = Begun("M", 3);
  *begun.mutable_lost() = lost;
  history.BeginLineage(begun);
  EXPECT_EQ(removed(), std::vector<std::string>{"spool-a"});
}

std::set<std::string> FilesOf(const JournalState& state) {
  std::set<std::string> files;
  for (const internal::v1::KeptRequest& kept : state.kept()) files.insert(kept.spool().name());
  return files;
}

// Gives the row of each decision, and the files that go with it. A row that replaces others is one of them.
std::vector<std::pair<JournalRow, std::set<std::string>>> FilesByRow(Outbox& out) {
  std::vector<std::pair<JournalRow, std::set<std::string>>> rows;
  for (const Action& action : out.Take().actions) {
    if (const auto* row = std::get_if<JournalAction>(&action)) {
      EXPECT_TRUE(rows.emplace_back().first.ParseFromString(row->body));
    } else {
      EXPECT_TRUE(rows.back().second.insert(std::get<RemoveSpoolAction>(action).name).second) << "twice";
    }
  }
  return rows;
}

// The oracle compares the names of all kept requests before and after each row.
TEST(KeptFilesTest, TheFilesThatGoAreThoseThatNoRequestNamesAnyMore) {
  std::mt19937 random(1);
  Outbox out;
  out.Begin(absl::UnixEpoch());
  History history({.replays = true, .requests_kept = kRequestsKept, .snapshot_after_bytes = 2000}, &out);
  Live(random, history, 200);
  for (int i = 0; i < 40; ++i) {
    const bool kept = i != 20;
    const uint64_t step = history.state().step() + 1;
    const std::string id = "s" + std::to_string(i);
    history.Accept(Accepted(id, kept));
    if (kept) history.Commit(Committed(id, 0, step));
    history.Apply(Applied(id, 0, step));
    history.Finish(Finished(id, v1::DONE));
    if (i % 4 == 3) history.SaveCheckpoint(Saved(history.state().lineage(), step));
  }
  JournalState state;
  std::map<JournalRow::RowCase, size_t> gone;
  for (const auto& [row, files] : FilesByRow(out)) {
    const std::set<std::string> before = FilesOf(state);
    ASSERT_TRUE(FoldRow(row, kRequestsKept, state).ok());
    std::set<std::string> unnamed;
    const std::set<std::string> after = FilesOf(state);
    std::set_difference(before.begin(), before.end(), after.begin(), after.end(),
                        std::inserter(unnamed, unnamed.end()));
    ASSERT_EQ(files, unnamed) << row.ShortDebugString();
    gone[row.row_case()] += files.size();
  }
  EXPECT_TRUE(MessageDifferencer::Equals(state, history.state()));
  for (const auto row :
       {JournalRow::kFinished, JournalRow::kLineageBegun, JournalRow::kApplied, JournalRow::kCheckpointSaved}) {
    EXPECT_GT(gone[row], 1u) << row;
  }
}

}  // namespace
}  // namespace stemma::server
