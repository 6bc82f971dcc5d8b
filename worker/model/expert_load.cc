#include "worker/model/expert_load.h"

#include <glog/logging.h>

#include <cstddef>

namespace stemma::worker {

ExpertLoad::ExpertLoad(int64_t layers, int64_t experts) {
  const std::vector<uint64_t> none(static_cast<size_t>(experts));
  layers_.assign(static_cast<size_t>(layers), {none, none});
}

void ExpertLoad::Add(int64_t layer, const at::Tensor& experts_TU, std::span<const uint32_t> multiplicity_T) {
  const auto rows = static_cast<size_t>(experts_TU.size(0)), per_row = static_cast<size_t>(experts_TU.size(1));
  CHECK(multiplicity_T.empty() || multiplicity_T.size() == rows) << multiplicity_T.size() << " of " << rows << " rows";
  CHECK(experts_TU.is_contiguous());
  const auto* experts = experts_TU.const_data_ptr<int64_t>();
  Layer& counts = layers_.at(static_cast<size_t>(layer));
  for (size_t row = 0; row < rows; ++row) {
    const uint32_t logical = multiplicity_T.empty() ? 1 : multiplicity_T[row];
    for (size_t choice = row * per_row; choice < (row + 1) * per_row; ++choice) {
      const auto expert = static_cast<size_t>(experts[choice]);
      counts.logical_rows[expert] += logical;
      ++counts.computed_rows[expert];
    }
  }
}

}  // namespace stemma::worker
