#include "common/admission/training_request.h"

#include <malloc.h>

#include <utility>

namespace stemma {
namespace {

// A request that is smaller is soon followed by one that takes its memory.
constexpr uint64_t kLargeRequestBytes = 16 << 20;

}  // namespace

std::shared_ptr<const TrainingRequest> GivenBackOnceDropped(std::shared_ptr<const TrainingRequest> request) {
  if (request->bytes < kLargeRequestBytes) return request;
  const TrainingRequest* const held = request.get();
  return {held, [request = std::move(request)](const TrainingRequest*) mutable {
            request.reset();
            malloc_trim(0);
          }};
}

}  // namespace stemma
