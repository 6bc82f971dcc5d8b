#include "worker/optim/ranges.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "common/cost/state_slabs.h"

namespace stemma::worker {

ParameterRanges RangesOfAll(const std::vector<int64_t>& parameter_elements) {
  ParameterRanges ranges;
  for (size_t p = 0; p < parameter_elements.size(); ++p) {
    if (parameter_elements[p] > 0) ranges.push_back({static_cast<int64_t>(p), 0, parameter_elements[p]});
  }
  return ranges;
}

ParameterRanges Intersect(const ParameterRanges& a, const ParameterRanges& b) {
  ParameterRanges both;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    const int64_t begin = std::max(x->begin, y->begin), end = std::min(x->end(), y->end());
    if (x->parameter == y->parameter && begin < end) both.push_back({x->parameter, begin, end - begin});
    std::pair(x->parameter, x->end()) < std::pair(y->parameter, y->end()) ? ++x : ++y;
  }
  return both;
}

void CheckRanges(const ParameterRanges& ranges, const std::vector<int64_t>& parameter_elements) {
  ParameterRange last{-1, 0, 0};
  for (const ParameterRange& range : ranges) {
    CHECK_GE(range.parameter, last.parameter) << "ranges are in order of their parameters";
    CHECK_LT(range.parameter, static_cast<int64_t>(parameter_elements.size()));
    const int64_t elements = parameter_elements[static_cast<size_t>(range.parameter)];
    CHECK_GE(range.begin, range.parameter == last.parameter ? last.end() : 0) << "ranges do not overlap";
    CHECK_GT(range.count, 0);
    CHECK_LE(range.end(), elements) << "of parameter " << range.parameter;
    CHECK_EQ(range.begin % kStateSlabUnit, 0) << "of parameter " << range.parameter;
    CHECK(range.end() % kStateSlabUnit == 0 || range.end() == elements) << "of parameter " << range.parameter;
    last = range;
  }
}

}  // namespace stemma::worker
