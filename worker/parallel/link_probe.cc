#include "worker/parallel/link_probe.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "common/base/mesh_links.h"
#include "common/base/round_up.h"
#include "common/base/status_macros.h"

namespace stemma::worker {
namespace {

constexpr int kMessages = 2;                             // of an exchange
constexpr int kSmallExchanges = 7, kLargeExchanges = 3;  // that are counted
constexpr double kSmallShare = 1.0 / 3;                  // of the time
constexpr int64_t kSmallBytes = 4;
// The larger ones are for links on which the bytes of those before them are few beside the message; those from
// kOfFastLinks on are for such links alone.
constexpr std::array<int64_t, 5> kLargeBytes = {64 << 10, 512 << 10, 4 << 20, 16 << 20, 64 << 20};
constexpr size_t kOfFastLinks = 3;
// An exchange that takes fewer times what a small one does is mostly message, and what held it up would pass for bytes.
constexpr double kClear = 4;
constexpr double kNanosecondsOfSecond = 1e9;

int64_t Nanoseconds(double seconds) { return std::llround(seconds * kNanosecondsOfSecond); }
double SecondsOf(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / kNanosecondsOfSecond; }

// Two messages of one size between the ranks of an axis, made again and again with the same tensors.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int64_t bytes() const = 0;  // that a rank sends, or receives, in both messages
  // Returns the seconds that this rank needed; 0 where others measure.
  virtual absl::StatusOr<double> Run(const Clock& clock) = 0;
};

// A device may go on computing after a call has returned: what reads the values waits for it.
void AwaitValues(const at::Tensor& values) { values.view(-1).select(0, 0).item<float>(); }

class GatherAndScatter final : public Exchange {
 public:
  GatherAndScatter(Communicator& axis, int64_t bytes, at::Device device)
      : axis_(axis),
        part_(at::zeros({DivideUp(bytes / int64_t{sizeof(float)}, int64_t{axis.size()})},
                        at::TensorOptions().dtype(at::kFloat).device(device))),
        whole_(at::zeros({part_.numel() * axis.size()}, part_.options())),
        scratch_(at::zeros_like(whole_)) {}

  int64_t bytes() const override {
    const auto whole_bytes = static_cast<int64_t>(whole_.nbytes());
    return CollectiveBytes(CollectiveKind::kAllGather, whole_bytes, axis_.size()) +
           CollectiveBytes(CollectiveKind::kReduceScatterSum, whole_bytes, axis_.size());
  }

  absl::StatusOr<double> Run(const Clock& clock) override {
    const double begun_s = clock.MonotonicSeconds();
    RETURN_IF_ERROR(axis_.AllGather(kLinkProbeName, part_, whole_));
    RETURN_IF_ERROR(axis_.StartReduceScatterSum(kLinkProbeName, whole_, part_, scratch_)->Wait());
    AwaitValues(part_);
    return clock.MonotonicSeconds() - begun_s;
  }

 private:
  Communicator& axis_;
  at::Tensor part_, whole_, scratch_;
};

// A message to the next rank and one back; the next is `stride` ranks on. First the pairs (0, 1), (2, 3), … speak, then
// (1, 2), (3, 4), …: each rank is in one pair at a time, in which the earlier one begins, so nobody waits in a circle.
class ThereAndBack final : public Exchange {
 public:
  ThereAndBack(Communicator& axis, int stride, int64_t bytes, at::Device device)
      : axis_(axis),
        stride_(stride),
        values_(at::zeros({bytes / int64_t{sizeof(float)}}, at::TensorOptions().dtype(at::kFloat).device(device))) {}

  int64_t bytes() const override {
    const auto bytes = static_cast<int64_t>(values_.nbytes());
    return CollectiveBytes(CollectiveKind::kSend, bytes, axis_.size()) +
           CollectiveBytes(CollectiveKind::kReceive, bytes, axis_.size());
  }

  absl::StatusOr<double> Run(const Clock& clock) override {
    const int place = axis_.rank() / stride_;
    const int next = axis_.rank() + stride_, before = axis_.rank() - stride_;
    double seconds = 0;
    for (const int first : {0, 1}) {
      if (place % 2 == first && next < axis_.size()) {
        const double begun_s = clock.MonotonicSeconds();
        RETURN_IF_ERROR(axis_.Send(kLinkProbeName, values_, next));
        RETURN_IF_ERROR(axis_.Receive(kLinkProbeName, values_, next));
        AwaitValues(values_);
        seconds = clock.MonotonicSeconds() - begun_s;
      } else if (place % 2 != first && before >= 0) {
        RETURN_IF_ERROR(axis_.Receive(kLinkProbeName, values_, before));
        RETURN_IF_ERROR(axis_.Send(kLinkProbeName, values_, before));
      }
    }
    return seconds;
  }

 private:
  Communicator& axis_;
  const int stride_;
  at::Tensor values_;
};

constexpr int kCollectives = 0;

class AxisProbe {
 public:
  // `stride`: of the messages from rank to rank that are probed, or kCollectives.
  AxisProbe(Communicator& axis, int stride, at::Device device, const Clock& clock)
      : axis_(axis), stride_(stride), device_(device), clock_(clock), begun_s_(clock.MonotonicSeconds()) {}

  absl::StatusOr<AxisLink> Run() {
    ASSIGN_OR_RETURN(const ExchangeTime small,
                     Measure(kSmallBytes * axis_.size(), kSmallExchanges, kLinkProbeSeconds * kSmallShare));
    ASSIGN_OR_RETURN(ExchangeTime large, Measure(kLargeBytes[0], kLargeExchanges, kLinkProbeSeconds));
    for (size_t size = 1; size < kLargeBytes.size() && Tries(size, small, large); ++size) {
      ASSIGN_OR_RETURN(large, Measure(kLargeBytes[size], kLargeExchanges, kLinkProbeSeconds));
    }
    return FitLink(small, large);
  }

 private:
  // Whether to go on to this size, after what the one before it took. One that is not clear of the message says nothing
  // of bytes, so the next is tried whatever the time; else its exchanges must fit into what is left.
  bool Tries(size_t size, const ExchangeTime& small, const ExchangeTime& before) const {
    if (before.fastest_s < kClear * small.median_s) return true;
    if (size >= kOfFastLinks) return false;
    const double times = static_cast<double>(kLargeBytes[size]) / static_cast<double>(kLargeBytes[size - 1]);
    const double of_bytes_s = (before.fastest_s - small.fastest_s) * times;
    return spent_s_ + (1 + kLargeExchanges) * (small.median_s + of_bytes_s) <= kLinkProbeSeconds;
  }

  std::unique_ptr<Exchange> Make(int64_t bytes) const {
    if (stride_ != kCollectives) return std::make_unique<ThereAndBack>(axis_, stride_, bytes, device_);
    return std::make_unique<GatherAndScatter>(axis_, bytes, device_);
  }

  // The first exchange is not counted: it opens connections and touches memory for the first time. Ends early, but with
  // one that is counted, once the probe of this axis has lasted for `until_s`.
  absl::StatusOr<ExchangeTime> Measure(int64_t bytes, int exchanges, double until_s) {
    const std::unique_ptr<Exchange> exchange = Make(bytes);
    std::vector<double> seconds;
    for (int i = 0; i <= exchanges; ++i) {
      ASSIGN_OR_RETURN(const double own_s, exchange->Run(clock_));
      std::array<int64_t, 2> slowest = {Nanoseconds(own_s), Nanoseconds(clock_.MonotonicSeconds() - begun_s_)};
      RETURN_IF_ERROR(axis_.Agree(kLinkProbeName, slowest));
      spent_s_ = SecondsOf(slowest[1]);
      if (i > 0) seconds.push_back(SecondsOf(slowest[0]));
      if (spent_s_ > until_s && !seconds.empty()) break;
    }
    const double fastest_s = *std::min_element(seconds.begin(), seconds.end());
    return ExchangeTime{exchange->bytes(), fastest_s, MedianSeconds(std::move(seconds))};
  }

  Communicator& axis_;
  const int stride_;
  const at::Device device_;
  const Clock& clock_;
  const double begun_s_;
  double spent_s_ = 0;  // by the slowest clock, as agreed
};

struct ProbedAxis {
  const char* name;
  Communicator* ranks;
  int stride = kCollectives;  // as AxisProbe has it

  int size() const { return stride == kCollectives ? ranks->size() : ranks->size() / stride; }
};

}  // namespace

AxisLink FitLink(const ExchangeTime& small, const ExchangeTime& large) {
  CHECK_LT(small.bytes, large.bytes);
  AxisLink link;
  link.byte_s = std::clamp((large.fastest_s - small.fastest_s) / static_cast<double>(large.bytes - small.bytes),
                           kLinkByteSecondsMin, kLinkByteSecondsMax);
  const double of_bytes_s = link.byte_s * static_cast<double>(small.bytes);
  link.message_s =
      std::clamp((small.median_s - of_bytes_s) / kMessages, kLinkMessageSecondsMin, kLinkMessageSecondsMax);
  return link;
}

double MedianSeconds(std::vector<double> seconds) {
  CHECK(!seconds.empty());
  const auto middle = seconds.begin() + static_cast<int64_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

absl::StatusOr<std::vector<AxisLink>> ProbeLinks(const MeshRanks& ranks, at::Device device, const Clock& clock) {
  const int cp = ranks.cp->size();
  const std::array<ProbedAxis, kLinksMax> axes = {{{"data", ranks.data.get()},
                                                   {"dp", ranks.data.get(), cp},
                                                   {"cp", ranks.cp.get()},
                                                   {"tp", ranks.tp.get()},
                                                   {"pp", ranks.pp.get(), 1}}};
  std::vector<AxisLink> links;
  for (const ProbedAxis& axis : axes) {
    // All groups begin an axis together: none measures while the others do something else.
    int64_t begins = 0;
    RETURN_IF_ERROR(ranks.Agree(kLinkProbeName, {&begins, 1}));
    if (axis.size() == 1) continue;
    ASSIGN_OR_RETURN(AxisLink link, AxisProbe(*axis.ranks, axis.stride, device, clock).Run());
    link.axis = axis.name;
    link.ranks = axis.size();
    links.push_back(std::move(link));
  }
  return links;
}

}  // namespace stemma::worker
