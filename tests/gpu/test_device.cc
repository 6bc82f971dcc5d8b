#include "tests/gpu/test_device.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>

#include "common/base/device_name.h"
#include "glog/logging.h"
#include "tests/gpu/checked_backend.h"
#include "worker/engine/open_device.h"

namespace stemma::testing {
namespace {

std::string NameOfDevice() {
  const char* name = std::getenv("STEMMA_TEST_DEVICE");
  return name == nullptr ? "cuda:0" : name;
}

struct Opened {
  std::unique_ptr<Device> device;
  std::string failure;
};

Opened Open() {
  const absl::StatusOr<DeviceName> name = ParseDevice(NameOfDevice());
  CHECK(name.ok()) << "STEMMA_TEST_DEVICE: " << name.status();
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(*name);
  if (!device.ok()) return {nullptr, std::string(device.status().message())};
  return {*std::move(device), ""};
}

const Opened& TheDevice() {
  static const Opened& opened = *new Opened(Open());
  return opened;
}

// A device whose faster attention makes its plans at once, as in the self-check: a test's few calls over a prefix would
// else all be the other library's.
class WithPlansAtOnce final : public Device {
 public:
  explicit WithPlansAtOnce(const Device& device) : device_(device) {}
  DeviceIdentity identity() const override { return device_.identity(); }
  std::string id() const override { return device_.id(); }
  DeviceMemory memory() const override { return device_.memory(); }
  Backend MakeBackend(const BackendRequest& request) const override {
    Backend backend = device_.MakeBackend(request);
    for (AttentionStrategy& faster : backend.faster_attention) faster.in_use = nullptr;
    return backend;
  }
  absl::StatusOr<std::shared_ptr<const Transport>> MakeTransport() const override { return device_.MakeTransport(); }

 private:
  const Device& device_;
};

class DeviceEnvironment final : public ::testing::Environment {
 public:
  void SetUp() override { TheDevice(); }
};

const ::testing::Environment* const kEnvironment = ::testing::AddGlobalTestEnvironment(new DeviceEnvironment);

}  // namespace

const std::string& NoTestDevice() { return TheDevice().failure; }

bool OnGpu() { return TheDevice().device != nullptr && !TheDevice().device->memory().is_host; }

const Backend& DeviceBackend(const std::string& dtype, const ModelConfig& model) {
  using Key = std::tuple<std::string, int64_t, int64_t, int64_t>;
  static std::map<Key, Backend>& made = *new std::map<Key, Backend>;
  const Key key = {dtype, model.num_heads, model.num_kv_heads, model.head_size};
  const auto found = made.find(key);
  if (found != made.end()) return found->second;
  return made.emplace(key, CheckedBackend(WithPlansAtOnce(*TheDevice().device), dtype, model)).first->second;
}

}  // namespace stemma::testing
