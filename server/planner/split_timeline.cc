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

Timeline RunTimeline(std::span<const SharedGroup> shared, const std::vector<std::vector<double>>& whole_s) {
  Timeline timeline;
  timeline.finish_s.resize(whole_s.size());
  timeline.exchange_s.resize(whole_s.size());
  for (size_t place = 0; place <= shared.size(); ++place) {
    for (size_t rank = 0; rank < whole_s.size(); ++rank) {
      CHECK_EQ(whole_s[rank].size(), shared.size() + 1);
      timeline.finish_s[rank] += whole_s[rank][place];
    }
    if (place < shared.size()) RunShared(shared[place], timeline.finish_s, timeline.exchange_s);
  }
  return timeline;
}

}  // namespace stemma::server
