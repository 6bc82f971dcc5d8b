#include "worker/engine/checked_backend.h"

#include <utility>
#include <vector>

#include "worker/backend/build_id.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/self_check/run_self_check.h"

namespace stemma::worker {
namespace {

CheckFingerprint FingerprintOf(const DeviceIdentity& device, const BackendRequest& request, const Backend& backend) {
  std::vector<std::string> faster_attention;
  for (const AttentionStrategy& strategy : backend.faster_attention) faster_attention.push_back(strategy.name);
  return {.device_name = device.name,
          .compute_capability = device.compute_capability,
          .driver = device.driver,
          .cuda_runtime = device.runtime,
          .torch = device.torch,
          .cublas = device.cublas,
          .cudnn = device.cudnn,
          .build_id = device.build_id,
          .checks_build_id = OwnBuildId(),
          .dtype = c10::toString(request.run_dtype),
          .shape = {request.num_heads, request.num_kv_heads, request.head_size},
          .faster_attention = std::move(faster_attention)};
}

}  // namespace

Backend CheckedBackend(const Device& device, const BackendRequest& request, const std::string& data_directory) {
  Backend backend = device.MakeBackend(request);
  const DeviceIdentity identity = device.identity();
  if (identity.name.empty()) return backend;
  CheckFingerprint fingerprint = FingerprintOf(identity, request, backend);
  const bool is_cpu = backend.device.is_cpu();
  return RunSelfCheck({.candidate = std::move(backend),
                       .reference = {ComposedKernels(), MakeComposedAttention()},
                       .dtype = request.run_dtype,
                       .fingerprint = std::move(fingerprint),
                       .data_directory = data_directory,
                       .large_cases = !is_cpu});
}

}  // namespace stemma::worker
