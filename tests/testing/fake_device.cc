#include "tests/testing/fake_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <glog/logging.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "tests/testing/late_copies.h"
#include "worker/backend/composed/composed_backend.h"

namespace stemma::testing {
namespace {

constexpr c10::DeviceType kFake = c10::DeviceType::PrivateUse1;
constexpr size_t kDeviceBytes = size_t{4} << 30;  // of address space; pages come as they are used
constexpr size_t kAlignment = 64;

std::atomic<int64_t> num_synchronizations = 0;

// The device's memory: one range of pages, closed but while an op runs.
class DeviceMemory {
 public:
  static DeviceMemory& Get() {
    static auto* memory = new DeviceMemory;  // outlives every tensor
    return *memory;
  }

  void* Take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t size = std::bit_ceil(std::max(bytes, kAlignment));
    std::vector<void*>& free_blocks = free_[size];
    void* block;
    if (!free_blocks.empty()) {
      block = free_blocks.back();
      free_blocks.pop_back();
    } else {
      CHECK_LE(next_ + size, kDeviceBytes) << "the fake device is full";
      block = base_ + next_;
      next_ += size;
    }
    sizes_[block] = {size, static_cast<int64_t>(bytes)};
    stats_.current_bytes += static_cast<int64_t>(bytes);
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.current_bytes);
    return block;
  }

  void Give(void* block) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(block);
    CHECK(found != sizes_.end());
    free_[found->second.size].push_back(block);
    stats_.current_bytes -= found->second.bytes;
    sizes_.erase(found);
  }

  MemoryStats stats() const { return stats_; }
  void ResetPeak() { stats_.peak_bytes = stats_.current_bytes; }

  // Ops nest: the outermost opens and closes.
  void Open() {
    if (depth_++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  void Close() {
    if (--depth_ == 0) Protect(PROT_NONE);
  }
  bool is_open() const { return depth_ > 0; }

 private:
  struct Block {
    size_t size;
    int64_t bytes;
  };

  DeviceMemory() {
    void* base = mmap(nullptr, kDeviceBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED);
    base_ = static_cast<char*>(base);
  }
  void Protect(int access) { CHECK_EQ(mprotect(base_, kDeviceBytes, access), 0); }

  std::mutex mutex_;
  char* base_;
  size_t next_ = 0;
  std::map<size_t, std::vector<void*>> free_;
  std::map<void*, Block> sizes_;
  MemoryStats stats_;
  int depth_ = 0;  // one engine thread makes all ops
};

class FakeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kFake, 0);
    if (bytes == 0) return {nullptr, device};
    void* block = DeviceMemory::Get().Take(bytes);
    return {block, block, [](void* p) { DeviceMemory::Get().Give(p); }, device};
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    const OpenFakeMemory open;
    std::memcpy(to, from, count);
  }
};

FakeAllocator allocator;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
};

std::string failure;  // the device's words; empty: it works

struct FakeGuard final : c10::impl::NoOpDeviceGuardImpl<kFake> {
  bool queryStream(const c10::Stream&) const override {
    constexpr int32_t kIllegalAddress = 700;  // CUDA's
    if (!failure.empty()) throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, kIllegalAddress, failure);
    return true;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

// A view of the same memory as a CPU tensor; the caller keeps the memory open.
at::Tensor OnHost(const at::Tensor& x) {
  if (!x.is_privateuseone()) return x;
  return at::from_blob(x.unsafeGetTensorImpl()->mutable_data(), x.sizes(), x.strides(),
                       at::TensorOptions(at::kCPU).dtype(x.scalar_type()));
}

at::Tensor Empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor EmptyStrided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool) {
  // Inside of an op it is the fallback that moves operands.
  if (!DeviceMemory::Get().is_open() && from.is_privateuseone() && to.is_cpu()) ++num_synchronizations;
  const OpenFakeMemory open;
  OnHost(to).copy_(OnHost(from));
  return to;
}

const at::Tensor& Resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  // Outputs that ops make are empty until their size is known.
  auto* impl = self.unsafeGetTensorImpl();
  int64_t elements = 1;
  for (const int64_t length : size) elements *= length;
  const size_t bytes = static_cast<size_t>(elements) * self.itemsize();
  if (self.storage().nbytes() < bytes) {
    self.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(allocator.allocate(bytes));
    self.storage().unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  return self;
}

at::Tensor& SetStorage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size,
                       at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(size, stride);
  return self;
}

at::Tensor CopyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) Resize(to, from.sizes(), {});
  return CopyFrom(from, to, false);
}

at::Scalar LocalScalar(const at::Tensor& self) {
  if (!DeviceMemory::Get().is_open()) ++num_synchronizations;
  const OpenFakeMemory open;
  return OnHost(self).item();
}

// Which devices an op's tensors are on.
struct Operands {
  bool device = false;
  bool host = false;  // a tensor of one dimension or more: a scalar tensor may come from the host, as on CUDA

  void Add(const at::Tensor& x) {
    if (!x.defined()) return;
    device |= x.is_privateuseone();
    host |= x.is_cpu() && x.dim() > 0;
  }
};

void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Operands operands;
  for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) operands.Add(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& x : value.toTensorVector()) operands.Add(x);
    }
    if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& x : value.toOptionalTensorVector()) operands.Add(x.value_or(at::Tensor()));
    }
  }
  TORCH_CHECK(!(operands.device && operands.host), op.schema().operator_name(),
              ": a tensor of the host meets one of the device");
  const OpenFakeMemory open;
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(Empty));
  m.impl("empty_strided", TORCH_FN(EmptyStrided));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("view.dtype", TORCH_FN(at::native::view_dtype));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("resize_", TORCH_FN(Resize));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(SetStorage));
  m.impl("_copy_from", TORCH_FN(CopyFrom));
  m.impl("_copy_from_and_resize", TORCH_FN(CopyFromAndResize));
  m.impl("_local_scalar_dense", TORCH_FN(LocalScalar));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&Fallback>()); }

void Register() {
  static const bool once = [] {
    c10::SetAllocator(kFake, &allocator);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
  }();
  CHECK(once);
}

// What lies between rows of logits is NaN, so that an op that reads it is seen.
void LogitsWithNanBetweenRows(const LogitsOperands& args) {
  const at::Tensor& logits = args.logits_TV;
  const int64_t vocab = logits.size(1), between = logits.stride(0) - vocab;
  if (between > 0) {
    logits.as_strided({logits.size(0), between}, logits.strides(), logits.storage_offset() + vocab)
        .fill_(std::numeric_limits<double>::quiet_NaN());
  }
  ComposedKernels().logits(args);
}

MemoryStats Stats() { return DeviceMemory::Get().stats(); }
void ResetPeak() { DeviceMemory::Get().ResetPeak(); }

}  // namespace

OpenFakeMemory::OpenFakeMemory() { DeviceMemory::Get().Open(); }
OpenFakeMemory::~OpenFakeMemory() { DeviceMemory::Get().Close(); }

Backend MakeFakeDeviceBackend() {
  Register();
  Backend backend = MakeComposedBackend(c10::Device(kFake, 0), Stats, ResetPeak);
  backend.make_copy_engine = [] { return std::unique_ptr<CopyEngine>(std::make_unique<LateCopyEngine>()); };
  backend.queries_by_token = true;
  backend.dlogits_in_run_dtype = true;
  backend.logits_row_quantum = 8;
  backend.kernels.logits = LogitsWithNanBetweenRows;
  backend.slab_elements_with_masters = kGpuSlabElements;
  return backend;
}

FailedFakeDevice::FailedFakeDevice(std::string words) { failure = std::move(words); }
FailedFakeDevice::~FailedFakeDevice() { failure.clear(); }

int64_t NumSynchronizations() { return num_synchronizations; }

}  // namespace stemma::testing
