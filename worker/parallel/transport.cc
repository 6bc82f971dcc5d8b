#include "worker/parallel/transport.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "absl/strings/str_cat.h"

namespace stemma::worker {
namespace {

void ConnectPairs(const c10::intrusive_ptr<c10d::Store>& store, const AxisRank& axis, const ConnectRanks& connect,
                  AxisBackends& backends) {
  backends.to.resize(static_cast<size_t>(axis.size));
  backends.from.resize(static_cast<size_t>(axis.size));
  const auto one_way = [&](int from, int to) {
    if (axis.rank != from && axis.rank != to) return;
    AxisRank pair = axis;
    pair.axis = absl::StrCat(axis.axis, ".", from, "to", to);
    pair.rank = axis.rank == from ? 0 : 1;
    pair.size = 2;
    pair.pairs_apart = false;
    pair.one_way = true;
    const int peer = axis.rank == from ? to : from;
    auto& backend = (axis.rank == from ? backends.to : backends.from)[static_cast<size_t>(peer)];
    backend = connect(c10::make_intrusive<c10d::PrefixStore>(absl::StrCat(from, "to", to), store), pair);
  };
  const auto both_ways = [&](int rank, int next) {
    one_way(rank, next);
    one_way(next, rank);
  };
  // In one order on all ranks, so that none waits in a circle: (0, 1), (2, 3), … side by side, then (1, 2), (3, 4), …,
  // then the ring's end. A rank waits for two pairs at most, however many ranks there are.
  for (const int first : {0, 1}) {
    for (int rank = first; rank + 1 < axis.size; rank += 2) both_ways(rank, rank + 1);
  }
  if (axis.size > 2) both_ways(axis.size - 1, 0);
}

}  // namespace

void ConnectOnDevice(const c10::intrusive_ptr<c10d::Store>& store, const AxisRank& axis, const ConnectRanks& connect,
                     AxisBackends& backends) {
  if (axis.pairs_apart) return ConnectPairs(store, axis, connect, backends);
  backends.device = connect(store, axis);
}

void WarmUp(c10d::Backend& backend, const AxisRank& ranks, at::Device device) {
  constexpr int kTag = 0;
  const at::TensorOptions options = at::TensorOptions().dtype(at::kLong).device(device);
  const bool receives = ranks.one_way && ranks.rank == 1;
  std::vector<at::Tensor> values{receives ? at::zeros({1}, options) : at::ones({1}, options)};
  if (receives) {
    backend.recv(values, 0, kTag)->wait();
  } else if (ranks.one_way) {
    backend.send(values, 1, kTag)->wait();
  } else {
    backend.allreduce(values)->wait();
  }
  const int64_t found = values[0].item<int64_t>(), expected = ranks.one_way ? 1 : backend.getSize();
  TORCH_CHECK(found == expected, "the first call of axis ", ranks.axis, " gave ", found, ", not ", expected);
}

}  // namespace stemma::worker
