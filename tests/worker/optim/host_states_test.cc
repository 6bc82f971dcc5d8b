// States in host memory against states on the device: the same bits, whatever the slabs and whenever a copy runs.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "common/base/round_up.h"
#include "tests/testing/backends.h"
#include "tests/testing/namespaces.h"
#include "tests/worker/memory/fake_copy_engine.h"
#include "tests/worker/optim/parameters.h"
#include "worker/memory/cpu_allocator.h"
#include "worker/memory/thread_copy_engine.h"
#include "worker/optim/slab_order.h"

namespace stemma::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kHostClip = 0.7;

// Matrices and vectors, whose sizes fill no vector register: one of many slabs, the others of a part of one.
const std::vector<std::vector<int64_t>> kHostSizes = {{53}, {37, 301}, {3}, {16}, {5, 129}, {1}, {2, 8}};

bool SameBits(const std::vector<Parameter>& a, const std::vector<Parameter>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Parameter& x, const Parameter& y) {
    return at::equal(x.weight, y.weight) && at::equal(x.master, y.master) && at::equal(x.exp_avg, y.exp_avg) &&
           at::equal(x.exp_avg_sq, y.exp_avg_sq);
  });
}

// Two sets of the same parameters, one with its states in host memory.
struct Pair {
  explicit Pair(at::ScalarType run_dtype)
      : device(MakeParameters(run_dtype, kHostSizes)), host(MakeParameters(run_dtype, kHostSizes, v1::HOST)) {}
  void Step(int64_t step, CopyEngine& copies, int64_t slab_elements) {
    SetGradients(device, step);
    SetGradients(host, step);
    AdamwStep(TestBackend(), device, AllRanges(device), {Adam(), kHostClip, step});
    AdamwStep(TestBackend(), host, AllRanges(host), {Adam(), kHostClip, step}, {&copies, slab_elements});
  }
  bool same() const { return SameBits(device, host); }

  std::vector<Parameter> device, host;
};

class HostStatesTest : public ::testing::TestWithParam<std::tuple<at::ScalarType, int64_t>> {
 protected:
  // Three steps, each with an engine of its own.
  template <typename Engine>
  void ExpectTheSameBits() {
    const auto [dtype, slab_elements] = GetParam();
    Pair pair(dtype);
    for (int64_t step = 1; step <= 3; ++step) {
      Engine copies;
      pair.Step(step, copies, slab_elements);
      EXPECT_TRUE(pair.same()) << "step " << step;
    }
  }
};

TEST_P(HostStatesTest, GiveTheBitsOfStatesOnTheDevice) { ExpectTheSameBits<ThreadCopyEngine>(); }

TEST_P(HostStatesTest, GiveThemWhenEveryCopyRunsAsEarlyAsItMay) { ExpectTheSameBits<EagerCopyEngine>(); }

TEST_P(HostStatesTest, GiveThemWhenEveryCopyRunsAsLateAsItMay) { ExpectTheSameBits<FakeCopyEngine>(); }

TEST_P(HostStatesTest, TakeTheDeviceBytesThatThePlanCanReport) {
  InstallCpuAllocator();
  const auto [dtype, slab_elements] = GetParam();
  Pair pair(dtype);
  StateSlabShape shape{.states = dtype == at::kBFloat16 ? 3 : 2,
                       .element_bytes = dtype == at::kDouble ? 8 : 4,
                       .slab_elements = slab_elements};
  for (const Parameter& p : pair.host) shape.elements += RoundUpToSlabUnit(p.grad.numel());
  SetGradients(pair.host, 1);
  ThreadCopyEngine copies;
  const int64_t before = CpuMemoryStats().current_bytes;
  const auto step = [&](double clip) {
    ResetPeakBytes();
    AdamwStep(TestBackend(), pair.host, AllRanges(pair.host), {Adam(), clip, 1}, {&copies, slab_elements});
    EXPECT_EQ(CpuMemoryStats().current_bytes, before) << "no state stays on the device";
    return CpuMemoryStats().peak_bytes - before;
  };
  int64_t parts = 0;
  for (const Slab& slab : CutSlabs(AllRanges(pair.host), slab_elements)) parts += static_cast<int64_t>(slab.size());
  const int64_t small = 64 + RoundUp(parts * 16, int64_t{64});  // the op's step, and what is found in each part
  EXPECT_EQ(step(1), StateSlabBytes(shape) + small);
  EXPECT_EQ(step(0.5), StateSlabBytes(shape) + ClippedSlabBytes(shape) + small + 64) << "the clip, too";
}

// What a step takes beside the states, with a clip and without: the difference is a slab of clipped gradients.
int64_t ClippedBytes(const Backend& backend, v1::OptimizerResidency residency) {
  InstallCpuAllocator();
  ThreadCopyEngine copies;
  const auto peak = [&](double clip) {
    std::vector<Parameter> parameters = MakeParameters(at::kBFloat16, kHostSizes, residency);
    SetGradients(parameters, 1);
    const int64_t before = CpuMemoryStats().current_bytes;
    ResetPeakBytes();
    AdamwStep(backend, parameters, AllRanges(parameters), {Adam(), clip, 1}, {&copies});
    return CpuMemoryStats().peak_bytes - before;
  };
  return peak(0.5) - peak(1) - 64;  // the clip itself
}

TEST(DeviceSlabsTest, AreTheBackendsAndThoseFromHostMemoryAreNot) {
  Backend backend = MakeTestBackend();
  backend.slab_elements_with_masters = 1024;
  EXPECT_EQ(ClippedBytes(backend, v1::DEVICE), 1024 * 4);
  EXPECT_GT(ClippedBytes(backend, v1::HOST), 4 * 1024 * 4);
}

TEST(DeviceSlabsTest, ChangeNoBit) {
  std::vector<Parameter> whole = MakeParameters(at::kBFloat16, kHostSizes), cut = whole;
  for (Parameter& p : cut) {
    for (at::Tensor* x : {&p.weight, &p.grad, &p.master, &p.exp_avg, &p.exp_avg_sq}) *x = x->clone();
  }
  Backend backend = MakeTestBackend();
  backend.slab_elements_with_masters = 1024;
  for (int64_t step = 1; step <= 3; ++step) {
    SetGradients(whole, step);
    SetGradients(cut, step);
    AdamwStep(TestBackend(), whole, AllRanges(whole), {Adam(), kHostClip, step});
    AdamwStep(backend, cut, AllRanges(cut), {Adam(), kHostClip, step});
    EXPECT_TRUE(SameBits(whole, cut)) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes, HostStatesTest,
    ::testing::Combine(::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                       // A unit; no divisor of anything; a divisor of nothing but large; about all; more than all.
                       ::testing::Values(1, 1000, 4096, 12'000, StateSlabElements(/*has_masters=*/false))),
    [](const auto& test) {
      return std::string(c10::toString(std::get<0>(test.param))) + "_" + std::to_string(std::get<1>(test.param));
    });

TEST(HostStatesTest, LieInHostMemoryFromTheFirstByteOn) {
  InstallCpuAllocator();
  const int64_t before = CpuMemoryStats().current_bytes;
  ResetPeakBytes();
  const std::vector<Parameter> host = MakeParameters(at::kBFloat16, kHostSizes, v1::HOST);
  int64_t elements = 0, largest = 0;
  for (const Parameter& p : host) {
    elements += p.grad.numel();
    largest = std::max(largest, p.grad.numel());
  }
  const auto rounding = static_cast<int64_t>(64 * 2 * host.size());
  EXPECT_LE(CpuMemoryStats().current_bytes - before, (2 + 4) * elements + rounding) << "weights and gradients";
  // And the test's own values, in fp32, and one of them in fp64.
  EXPECT_LE(CpuMemoryStats().peak_bytes - before, (2 + 4 + 4) * elements + 8 * largest + 2 * rounding);
}

// Says what it was given to lock.
class RecordingLock final : public PageLock {
 public:
  absl::Status Lock(void* begin, int64_t bytes) override {
    begin_ = static_cast<char*>(begin);
    bytes_ = bytes;
    return absl::OkStatus();
  }
  void Unlock(void* /*begin*/) override {}

  int64_t bytes() const { return bytes_; }
  bool Holds(const at::Tensor& x) const {
    const auto* data = static_cast<const char*>(x.const_data_ptr());
    return data >= begin_ && data + x.nbytes() <= begin_ + bytes_;
  }

 private:
  char* begin_ = nullptr;
  int64_t bytes_ = 0;
};

// Copies to and from other memory would hold the engine up. What is locked is no more than the states: of a run whose
// masters are its weights two for each, which an arena's smallest slab does not hold here.
TEST(HostStatesTest, LieInLockedMemoryThatIsNoLargerThanTheyAre) {
  constexpr int64_t kElements = int64_t{12} << 20;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<Parameter> parameters(1);
    Parameter& p = parameters[0];
    p.weight = at::empty({kElements}, dtype);
    p.grad = at::empty({kElements}, at::kFloat);
    if (dtype == at::kFloat) p.master = p.weight;
    RecordingLock lock;
    ASSERT_TRUE(MakeStates(parameters, v1::HOST, AllRanges(parameters), &lock).ok());
    EXPECT_TRUE(lock.Holds(p.exp_avg) && lock.Holds(p.exp_avg_sq));
    EXPECT_EQ(lock.Holds(p.master), dtype == at::kBFloat16);
    EXPECT_EQ(lock.bytes(), (dtype == at::kFloat ? 2 : 3) * 4 * kElements);
  }
}

// A third step by a wrong engine, after two by a right one: many slabs, so that no buffer holds the right states
// already.
bool SameAfterAStepBy(CopyEngine& wrong) {
  Pair pair(at::kFloat);
  ThreadCopyEngine right;
  pair.Step(1, right, 1024);
  pair.Step(2, right, 1024);
  EXPECT_TRUE(pair.same());
  pair.Step(3, wrong, 1024);
  return pair.same();
}

TEST(HostStatesTest, AnEngineThatSaysDoneTooSoonIsSeenByTheNumbers) {
  HastyCopyEngine hasty;
  EXPECT_FALSE(SameAfterAStepBy(hasty));
}

TEST(HostStatesTest, AnEngineThatMovesNothingOneWayIsSeenByTheNumbers) {
  LyingCopyEngine nothing_out(/*lies_out=*/true), nothing_in(/*lies_out=*/false);
  EXPECT_FALSE(SameAfterAStepBy(nothing_out));
  EXPECT_FALSE(SameAfterAStepBy(nothing_in));
}

// The engine's destructor holds every ticket to have ended.
TEST(HostStatesTest, ACopyThatFailsSaysWhereAndLeavesNoCopyInFlight) {
  for (const CopyTicket failing : {0, 1, 2, 5, 23}) {
    Pair pair(at::kFloat);
    FailingCopyEngine engine(failing);
    EXPECT_THAT([&] { pair.Step(1, engine, 1024); },
                ThrowsMessage<c10::Error>(AllOf(HasSubstr("optimizer states from element"),
                                                HasSubstr("could not be copied"), HasSubstr("the link is down"))))
        << "copy " << failing;
  }
}

// APPLY ends the process for any other error, as it has written some of the weights.
TEST(HostStatesTest, ADeviceThatFailedIsThrownAsOne) {
  Pair pair(at::kFloat);
  FailingCopyEngine engine(/*failing=*/5, absl::UnavailableError("an illegal access"));
  EXPECT_THAT([&] { pair.Step(1, engine, 1024); },
              ThrowsMessage<c10::AcceleratorError>(HasSubstr("an illegal access")));
}

TEST(HostStatesTest, WithoutAFirstSlabNoStateHasChanged) {
  Pair pair(at::kBFloat16);
  const Pair untouched(at::kBFloat16);
  FailingCopyEngine engine(/*failing=*/0);
  EXPECT_THROW(pair.Step(1, engine, 1024), c10::Error);
  EXPECT_TRUE(SameBits(pair.host, untouched.host));
}

}  // namespace
}  // namespace stemma::testing
