#include "worker/optim/state_stream.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/memory/copy_failure.h"
#include "worker/optim/slab_order.h"

namespace stemma::worker {
namespace {

StateSlabShape ShapeOf(const std::vector<Parameter>& parameters, const ParameterRanges& ranges, int64_t slab_elements) {
  StateSlabShape shape{.slab_elements = slab_elements};
  for (const ParameterRange& range : ranges) {
    const Parameter& p = parameters[static_cast<size_t>(range.parameter)];
    CHECK(p.states_on_host && p.grad.scalar_type() == parameters[0].grad.scalar_type()) << p.name;
    shape.elements += RoundUpToSlabUnit(range.count);
    shape.element_bytes = static_cast<int64_t>(p.grad.element_size());
    if (!p.master_is_weight()) shape.states = 3;
  }
  return shape;
}

// The slabs of one StreamStates. Cancels what is in flight when it ends early.
class StateStream {
 public:
  using StepFunction = std::function<void(const std::vector<StatePart>&)>;

  StateStream(const std::vector<Parameter>& parameters, const ParameterRanges& ranges, const HostStateOptions& options)
      : parameters_(parameters),
        copy_engine_(*options.copy_engine),
        shape_(ShapeOf(parameters, ranges, options.slab_elements)),
        slabs_(CutSlabs(ranges, options.slab_elements)),
        buffers_(at::empty({StateSlabBytes(shape_) / shape_.element_bytes}, parameters[0].grad.options())) {
    CHECK_EQ(static_cast<int64_t>(slabs_.size()), StateSlabCount(shape_));
  }
  ~StateStream() {
    for (Buffer& buffer : in_buffer_) {
      if (buffer.ticket.has_value()) copy_engine_.Cancel(*buffer.ticket);
    }
  }
  StateStream(const StateStream&) = delete;
  StateStream& operator=(const StateStream&) = delete;

  void Run(const StepFunction& step) {
    for (const SlabAction& action : SlabOrder(static_cast<int64_t>(slabs_.size()))) Execute(action, step);
  }

 private:
  struct Moved {
    at::Tensor host, device;
  };
  struct Buffer {
    std::vector<StatePart> parts;
    std::vector<Moved> moved;
    std::optional<CopyTicket> ticket;
  };

  void Execute(const SlabAction& action, const StepFunction& step) {
    Buffer& buffer = in_buffer_[action.buffer];
    switch (action.kind) {
      case SlabActionKind::kStartIn:
        Fill(action, buffer);
        buffer.ticket = copy_engine_.StartCopyIn(Spans(buffer, /*in=*/true));
        return;
      case SlabActionKind::kWaitIn:
        return Wait(action, "into the device");
      case SlabActionKind::kStep:
        return step(buffer.parts);
      case SlabActionKind::kStartOut:
        buffer.ticket = copy_engine_.StartCopyOut(Spans(buffer, /*in=*/false));
        return;
      case SlabActionKind::kWaitOut:
        return Wait(action, "back to the host");
    }
  }

  void Fill(const SlabAction& action, Buffer& buffer) {
    CHECK(!buffer.ticket.has_value()) << "a copy still goes on in the buffer of slab " << action.slab;
    buffer = {};
    for (const SlabPiece& piece : slabs_[static_cast<size_t>(action.slab)]) {
      const Parameter& p = parameters_[static_cast<size_t>(piece.parameter)];
      int64_t state = 0;
      const auto moved = [&](const at::Tensor& host) {
        buffer.moved.push_back({p.StateElements(host, piece.begin, piece.count), Place(action.buffer, state++, piece)});
        return buffer.moved.back().device;
      };
      StatePart part{&p,
                     p.WeightElements(piece.begin, piece.count),
                     p.GradElements(piece.begin, piece.count),
                     {},
                     moved(p.exp_avg),
                     moved(p.exp_avg_sq),
                     piece.slab_begin};
      part.master = p.master_is_weight() ? part.weight : moved(p.master);
      buffer.parts.push_back(std::move(part));
    }
  }

  // Where a piece of the state-th kind lies in a buffer.
  at::Tensor Place(int64_t buffer, int64_t state, const SlabPiece& piece) const {
    const int64_t slab_elements = std::min(RoundUpToSlabUnit(shape_.slab_elements), shape_.elements);
    return buffers_.narrow(0, (buffer * shape_.states + state) * slab_elements + piece.slab_begin, piece.count);
  }

  static std::vector<CopySpan> Spans(const Buffer& buffer, bool in) {
    std::vector<CopySpan> spans;
    for (const Moved& moved : buffer.moved) {
      const at::Tensor &from = in ? moved.host : moved.device, &to = in ? moved.device : moved.host;
      spans.push_back({from.const_data_ptr(), to.mutable_data_ptr(), static_cast<int64_t>(from.nbytes())});
    }
    return spans;
  }

  void Wait(const SlabAction& action, const char* direction) {
    const CopyTicket ticket = *std::exchange(in_buffer_[action.buffer].ticket, std::nullopt);
    const absl::Status status = copy_engine_.ComputeWaits(ticket);
    const SlabPiece& first = slabs_[static_cast<size_t>(action.slab)].front();
    if (status.ok()) return;
    ThrowCopyFailed(status, absl::StrCat("optimizer states from element ", first.begin, " of ",
                                         parameters_[static_cast<size_t>(first.parameter)].name,
                                         " on could not be copied ", direction, ": ", status.ToString()));
  }

  const std::vector<Parameter>& parameters_;
  CopyEngine& copy_engine_;
  const StateSlabShape shape_;
  const std::vector<Slab> slabs_;
  const at::Tensor buffers_;
  Buffer in_buffer_[kStateSlabsOnDevice];
};

}  // namespace

void StreamStates(const std::vector<Parameter>& parameters, const ParameterRanges& ranges,
                  const HostStateOptions& options, const std::function<void(const std::vector<StatePart>&)>& step) {
  if (ranges.empty()) return;
  CHECK(options.copy_engine != nullptr) << "states in host memory need a copy engine";
  StateStream(parameters, ranges, options).Run(step);
}

}  // namespace stemma::worker
