// Rows of the journal whose chain is whole: each is a JournalRow or no message. A list that no server wrote is refused
// with an error; a server that begins with what was accepted serves, and so does the one after it.
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/request_state.h"
#include "glog/logging.h"
#include "server/protocol/journal_checks.h"
#include "server/protocol/journal_fold.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/messages.h"
#include "tests/fuzz/played_server.h"

namespace stemma::fuzz {
namespace {

using internal::v1::JournalRow;
using internal::v1::JournalState;
using server::PlayedLife;

bool Fold(const std::vector<JournalRow>& rows, JournalState& state) {
  server::KnownRequests requests(&state);
  for (const JournalRow& row : rows) {
    if (!server::FoldRow(JournalRow(row), server::kPlayedRequestsKept, state, requests).ok()) return false;
  }
  return true;
}

// As Storage::Open reads them.
bool ReadRows(std::string_view input, JournalState& state) {
  std::vector<JournalRow> rows;
  for (const std::string& text : SplitMessages(input)) {
    if (!rows.emplace_back().ParseFromString(text)) return false;
  }
  return Fold(rows, state) && server::CheckJournalState(state).ok();
}

void DropMetrics(v1::UpdateResult& result) {
  result.clear_metrics();
  for (v1::StepResult& step : *result.mutable_steps()) step.clear_metrics();
}

// Dozens of names and numbers in each step that is applied, of which the server only makes sums.
void DropMetrics(JournalRow& row) {
  if (row.has_applied() && row.applied().has_result()) row.mutable_applied()->mutable_result()->clear_metrics();
  if (row.has_skipped()) {
    for (v1::StepResult& step : *row.mutable_skipped()->mutable_results()) step.clear_metrics();
  }
  if (!row.has_snapshot()) return;
  for (internal::v1::KnownRequest& request : *row.mutable_snapshot()->mutable_requests()) {
    if (request.has_result()) DropMetrics(*request.mutable_result());
    if (request.status().has_result()) DropMetrics(*request.mutable_status()->mutable_result());
  }
}

#ifdef STEMMA_SEEDED_BUG
// The control's mistake: a table for no more open requests than the seeds have at a time, which is two.
int times_open[3];

void CountOpen(const JournalState& state) {
  int open = 0;
  for (const internal::v1::KnownRequest& request : state.requests()) {
    if (!IsFinal(request.status().state())) ++open;
  }
  ++times_open[open];
}
#endif

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  const auto add = [&seeds](const std::vector<JournalRow>& rows) {
    std::vector<JournalRow> small = rows;
    for (JournalRow& row : small) DropMetrics(row);
    seeds.push_back(JoinAll(small));
    // What a server that is killed leaves: a request that is open, its steps decided or not.
    for (const size_t left : {small.size() * 2 / 3, small.size() / 2}) {
      small.resize(left);
      seeds.push_back(JoinAll(small));
    }
  };
  for (const PlayedLife& first :
       {PlayedLife{.steps = 1}, PlayedLife{.replays = false}, PlayedLife{.snapshots = true}}) {
    const std::vector<JournalRow> rows = server::Play(first);
    add(rows);
    for (const PlayedLife& second : {PlayedLife{}, PlayedLife{.replays = false}, PlayedLife{.weights = "other"}}) {
      PlayedLife life = second;
      life.steps = first.steps;
      CHECK(Fold(rows, life.journal));
      std::vector<JournalRow> both = rows;
      for (const JournalRow& row : server::Play(life)) both.push_back(row);
      add(both);
    }
  }
  return seeds;
}

}  // namespace stemma::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return stemma::fuzz::MutateMessages(stemma::internal::v1::JournalRow::default_instance(), data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stemma::fuzz;
  PlayedLife life;
  if (!ReadRows({reinterpret_cast<const char*>(data), size}, life.journal)) return 0;
#ifdef STEMMA_SEEDED_BUG
  CountOpen(life.journal);
  return 0;
#endif
  if (life.journal.epoch() > INT64_MAX - 2) return 0;  // two lives are played
  // The input decides how the server is started, so that a crash repeats. What is spooled cannot be read back: rows
  // that follow one another need not be those of the requests that are played.
  life.replays = size % 4 != 0;
  life.reads_spool = false;
  PlayedLife next = life;
  CHECK(Fold(stemma::server::Play(life), next.journal));
  stemma::server::Play(next);
  return 0;
}
