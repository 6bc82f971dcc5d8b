// What a copy engine must do, on a GPU; that copies keep to the order of the compute stream; and page-locked memory.
// Nothing here launches a kernel: work on the compute stream is a memset behind a gate that the host opens.
#include "worker/memory/cuda_copy_engine.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <cstring>

#include "common/base/mutex.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/memory/copy_engine_suite.h"
#include "worker/memory/cuda_page_lock.h"
#include "worker/memory/host_arena.h"

namespace stemma::testing {
namespace {

using ::testing::HasSubstr;

std::string NoGpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("needs a CUDA device: ") + cudaGetErrorString(error);
  return count > 0 ? "" : "needs a CUDA device: there is none";
}

void Must(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

struct CudaSide {
  static std::string WhyNot() { return NoGpu(); }
  CudaSide() {
    Must(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking));
    engine_ = CudaCopyEngine::Create(compute_).value();
  }
  ~CudaSide() {
    engine_.reset();
    Must(cudaStreamDestroy(compute_));
  }
  CopyEngine& engine() { return *engine_; }
  cudaStream_t compute() const { return compute_; }

  class Device {
   public:
    explicit Device(size_t count) : count_(count) {
      Must(cudaMalloc(&data_, count));
      Write(Bytes(count));
    }
    ~Device() { Must(cudaFree(data_)); }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    void* data() { return data_; }
    void Write(const Bytes& bytes) {
      Must(cudaMemcpy(data_, bytes.data(), count_, cudaMemcpyHostToDevice));
      Must(cudaDeviceSynchronize());  // a copy from pageable memory may end after its call
    }
    Bytes Read() const {
      Bytes bytes(count_);
      Must(cudaMemcpy(bytes.data(), data_, count_, cudaMemcpyDeviceToHost));
      return bytes;
    }

   private:
    const size_t count_;
    void* data_ = nullptr;
  };

  class Host {  // page-locked
   public:
    explicit Host(size_t count) : count_(count) {
      Must(cudaMallocHost(&data_, count));
      std::memset(data_, 0, count);
    }
    ~Host() { Must(cudaFreeHost(data_)); }
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;
    void* data() { return data_; }
    void Write(const Bytes& bytes) { std::memcpy(data_, bytes.data(), count_); }
    Bytes Read() const { return {static_cast<unsigned char*>(data_), static_cast<unsigned char*>(data_) + count_}; }

   private:
    const size_t count_;
    void* data_ = nullptr;
  };

 private:
  cudaStream_t compute_ = nullptr;
  std::unique_ptr<CudaCopyEngine> engine_;
};

INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, CopyEngineTest, CudaSide);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, CopyEngineDeathTest, CudaSide);

// A stream does not pass it before it is opened.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) { Must(cudaLaunchHostFunc(stream, &Gate::Pass, this)); }
  ~Gate() { Open(); }
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
  }

 private:
  static void Pass(void* gate) {
    auto* g = static_cast<Gate*>(gate);
    MutexLock lock(&g->mutex_);
    g->mutex_.Await([g]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(g->mutex_) { return g->open_; });
  }

  Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

constexpr size_t kCount = 1 << 20;

class CudaCopyEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!NoGpu().empty()) GTEST_SKIP() << NoGpu();
    side_ = std::make_unique<CudaSide>();
    device_ = std::make_unique<CudaSide::Device>(kCount);
    host_ = std::make_unique<CudaSide::Host>(kCount);
  }
  void TearDown() override {
    if (side_ != nullptr) Must(cudaDeviceSynchronize());
  }
  CopyEngine& engine() { return side_->engine(); }
  void QueueMemset(int value) { Must(cudaMemsetAsync(device_->data(), value, kCount, side_->compute())); }

  std::unique_ptr<CudaSide> side_;
  std::unique_ptr<CudaSide::Device> device_;
  std::unique_ptr<CudaSide::Host> host_;
};

TEST_F(CudaCopyEngineTest, ACopyOutBringsWhatWasQueuedBeforeIt) {
  Gate gate(side_->compute());
  QueueMemset(7);
  const CopyTicket ticket = engine().StartCopyOut({Span(*device_, *host_, kCount)});
  EXPECT_FALSE(engine().Done(ticket).value()) << "the compute stream stands at the gate";
  gate.Open();
  EXPECT_THAT(engine().Wait(ticket), IsOk());
  EXPECT_EQ(host_->Read(), Bytes(kCount, 7));
}

TEST_F(CudaCopyEngineTest, ACopyInComesAfterWorkThatStillUsesTheMemoryItFills) {
  host_->Write(Bytes(kCount, 2));
  Gate gate(side_->compute());
  QueueMemset(1);
  const CopyTicket ticket = engine().StartCopyIn({Span(*host_, *device_, kCount)});
  EXPECT_FALSE(engine().Done(ticket).value()) << "the compute stream stands at the gate";
  gate.Open();
  EXPECT_THAT(engine().Wait(ticket), IsOk());
  EXPECT_EQ(device_->Read(), Bytes(kCount, 2));
}

TEST_F(CudaCopyEngineTest, WorkThatIsQueuedAfterTheStartHoldsNoCopyUp) {
  device_->Write(Bytes(kCount, 5));
  const CopyTicket ticket = engine().StartCopyOut({Span(*device_, *host_, kCount)});
  Gate gate(side_->compute());
  EXPECT_THAT(engine().Wait(ticket), IsOk());
  EXPECT_EQ(host_->Read(), Bytes(kCount, 5));
  gate.Open();
  Must(cudaStreamSynchronize(side_->compute()));
}

TEST_F(CudaCopyEngineTest, CancelWaitsForTheCopy) {
  device_->Write(Bytes(kCount, 5));
  const CopyTicket ticket = engine().StartCopyOut({Span(*device_, *host_, kCount)});
  engine().Cancel(ticket);
  EXPECT_EQ(host_->Read(), Bytes(kCount, 5));
}

TEST_F(CudaCopyEngineTest, AStartThatFailsIsReportedOnceByDoneOrWaitInCudasWords) {
  const CopySpan nowhere{nullptr, nullptr, static_cast<int64_t>(kCount)};
  const auto named = StatusIs(absl::StatusCode::kInternal, HasSubstr("cudaMemcpyAsync: cudaErrorInvalidValue"));
  EXPECT_THAT(engine().Done(engine().StartCopyOut({nowhere})).status(), named);
  EXPECT_THAT(engine().Wait(engine().StartCopyIn({Span(*host_, *device_, kCount), nowhere})), named);
  EXPECT_THAT(engine().Wait(engine().StartCopyIn({Span(*host_, *device_, kCount)})), IsOk()) << "the engine goes on";
}

cudaMemoryType TypeOf(const void* p) {
  cudaPointerAttributes attributes{};
  Must(cudaPointerGetAttributes(&attributes, p));
  return attributes.type;
}

TEST_F(CudaCopyEngineTest, TheArenasSlabIsPageLockedFromCreateToTheEnd) {
  CudaPageLock page_lock;
  auto arena = HostArena::Create(8 * static_cast<int64_t>(kCount), &page_lock).value();
  void* first = arena->Take(static_cast<int64_t>(kCount));
  void* second = arena->Take(7 * static_cast<int64_t>(kCount));
  EXPECT_EQ(TypeOf(first), cudaMemoryTypeHost);
  EXPECT_EQ(TypeOf(static_cast<char*>(second) + 7 * kCount - 1), cudaMemoryTypeHost);
  arena->Give(first);
  arena->Give(second);
  arena.reset();
  EXPECT_EQ(TypeOf(first), cudaMemoryTypeUnregistered);
}

}  // namespace
}  // namespace stemma::testing
