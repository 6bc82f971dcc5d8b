#include "server/planner/split_timeline.h"

#include <algorithm>

#include "glog/logging.h"

namespace stemma::server {
namespace {

// Both ranks are busy with each other from when the later one comes.
void Meet(size_t a, size_t b, double seconds, std::vector<double>& clock_s, std::vector<double>& exchange_s) {
  const double end = std::max(clock_s[a], clock_s[b]) + seconds;
  for (const size_t rank : {a, b}) {
    exchange_s[rank] += end - clock_s[rank];
    clock_s[rank] = end;
  }
}

}  // namespace

double Timeline::max_s() const { return *std::max_element(finish_s.begin(), finish_s.end()); }

void RunShared(const SharedGroup& group, std::vector<double>& clock_s, std::vector<double>& exchange_s) {
  const auto owner = static_cast<size_t>(group.ranks[0]);
  const auto rank = [&](size_t i) { return static_cast<size_t>(group.ranks[i]); };
  clock_s[owner] += group.forward_s;
  for (size_t i = 1; i < group.ranks.size(); ++i) Meet(owner, rank(i), group.send_s, clock_s, exchange_s);
  for (size_t i = 0; i < group.ranks.size(); ++i) clock_s[rank(i)] += group.waves_s[i];
  for (size_t i = 1; i < group.ranks.size() && group.returns; ++i) {
    Meet(owner, rank(i), group.return_s, clock_s, exchange_s);
  }
  clock_s[owner] += group.backward_s;
}

WholeWork::WholeWork(std::initializer_list<std::vector<double>> by_rank_and_place)
    : of_ranks_(by_rank_and_place.size()) {
  size_t rank = 0;
  for (const std::vector<double>& places : by_rank_and_place) {
    for (size_t place = 0; place < places.size(); ++place) Add(rank, place, places[place]);
    ++rank;
  }
}

void WholeWork::Add(size_t rank, size_t place, double seconds) {
  std::vector<Entry>& entries = of_ranks_[rank];
  const auto it = std::lower_bound(entries.begin(), entries.end(), place,
                                   [](const Entry& entry, size_t before) { return entry.place < before; });
  if (it != entries.end() && it->place == place) {
    it->seconds += seconds;
  } else {
    entries.insert(it, {place, seconds});
  }
}

Timeline RunTimeline(std::span<const SharedGroup> shared, const WholeWork& whole) {
  Timeline timeline;
  timeline.finish_s.resize(whole.num_ranks());
  timeline.exchange_s.resize(whole.num_ranks());
  std::vector<size_t> done(whole.num_ranks());  // entries
  const auto advance = [&](size_t rank, size_t place) {
    const std::vector<WholeWork::Entry>& entries = whole.of_rank(rank);
    for (; done[rank] < entries.size() && entries[done[rank]].place <= place; ++done[rank]) {
      timeline.finish_s[rank] += entries[done[rank]].seconds;
    }
  };
  for (size_t place = 0; place < shared.size(); ++place) {
    for (const int32_t rank : shared[place].ranks) advance(static_cast<size_t>(rank), place);
    RunShared(shared[place], timeline.finish_s, timeline.exchange_s);
  }
  for (size_t rank = 0; rank < whole.num_ranks(); ++rank) {
    advance(rank, shared.size());
    CHECK_EQ(done[rank], whole.of_rank(rank).size()) << "a place after all shared groups is the last";
  }
  return timeline;
}

}  // namespace stemma::server
