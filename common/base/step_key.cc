#include "common/base/step_key.h"

#include "absl/strings/str_cat.h"

namespace stemma {

bool SameStepKey(const internal::v1::StepKey& a, const internal::v1::StepKey& b) {
  return a.epoch() == b.epoch() && a.incarnation() == b.incarnation() && a.generation() == b.generation() &&
         a.step() == b.step() && a.attempt() == b.attempt() && a.request_id() == b.request_id() && a.k() == b.k();
}

std::string StepKeyText(const internal::v1::StepKey& key) {
  return absl::StrCat("epoch ", key.epoch(), " incarnation ", key.incarnation(), " generation ", key.generation(),
                      " step ", key.step(), " attempt ", key.attempt(), " request ", key.request_id(), " k ", key.k());
}

}  // namespace stemma
