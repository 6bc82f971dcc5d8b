#include "worker/engine/exceptions.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/memory/cuda_error_codes.h"
#include "worker/parallel/collective_error.h"
#include "worker/parallel/device_failure.h"

namespace stemma::worker {
namespace {

// Returns the error of the device on which this thread computes; empty where it works, or is the host.
std::string ErrorOfDevice() {
  for (const c10::DeviceType type : {c10::DeviceType::CUDA, c10::DeviceType::PrivateUse1}) {
    if (!c10::impl::hasDeviceGuardImpl(type)) continue;
    const c10::impl::VirtualGuardImpl device(type);
    try {
      device.queryStream(device.getStream(device.getDevice()));
    } catch (const c10::AcceleratorError& e) {
      return e.what_without_backtrace();
    }
  }
  return "";
}

// An error that comes after the one of the device is seen first by whichever library calls it next: cuBLAS and cuDNN
// say that their own call failed.
absl::Status LibraryError(const c10::Error& e) {
  const std::string what = e.what_without_backtrace(), of_device = ErrorOfDevice();
  return of_device.empty() ? absl::InternalError(what) : OwnDeviceFailed(absl::StrCat(of_device, "; seen by: ", what));
}

// The device has failed, unless it only had no memory or refused a call.
absl::Status DeviceError(const c10::AcceleratorError& e) {
  const std::string what = e.what_without_backtrace();
  if (e.get_error_code() == kDeviceMemoryAllocationError) return absl::ResourceExhaustedError(what);
  return IsRefusedCall(e.get_error_code()) ? LibraryError(e) : OwnDeviceFailed(what);
}

}  // namespace

absl::Status StatusOfException() {
  try {
    throw;
  } catch (const CollectiveError& e) {
    return e.status();
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const c10::AcceleratorError& e) {
    return DeviceError(e);
  } catch (const c10::Error& e) {
    return LibraryError(e);
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

}  // namespace stemma::worker
