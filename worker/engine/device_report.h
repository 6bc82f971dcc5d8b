// What a worker reports to its server about the device that it computes on.
#pragma once

#include <string>

#include "stemma/internal/v1/worker.pb.h"
#include "worker/backend/backend.h"

namespace stemma::worker {

// Fills in the device's fields of a worker's Ready, once the model's state lies on the device.
void SetDeviceFields(const Backend& backend, const std::string& device_name, internal::v1::Ready& ready);

}  // namespace stemma::worker
