#include "common/base/log_limit.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace stemma {
namespace {

constexpr absl::Duration kEvery = absl::Seconds(10);

}  // namespace

bool LogLimit::Take(absl::Time now) {
  MutexLock lock(&mutex_);
  if (now - began_at_ >= kEvery) {
    began_at_ = now;
    taken_ = 0;
  }
  const bool takes = taken_ < lines_;
  ++(takes ? taken_ : left_out_);
  return takes;
}

std::string LogLimit::LeftOut() {
  MutexLock lock(&mutex_);
  const uint64_t lines = std::exchange(left_out_, 0);
  return lines == 0 ? "" : absl::StrCat(" (", lines, " more since the line before)");
}

}  // namespace stemma
