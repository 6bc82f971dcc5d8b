#include "common/admission/violations.h"

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace stemma {
void Violations::Add(const std::string& field, const std::string& description, const std::string& uid) {
  if (count_++ == 0) first_uid_ = Shortened(uid, 80);
  if (kept_.size() < kKept) kept_.push_back({Shortened(field, 80), Shortened(description, 160)});
}

absl::Status Violations::ToStatus() const {
  CHECK(!empty());
  std::string message = absl::StrCat(kept_.front().field, " ", kept_.front().description);
  if (!first_uid_.empty()) absl::StrAppend(&message, " (uid ", first_uid_, ")");
  if (count_ > 1) absl::StrAppend(&message, "; and ", count_ - 1, " more problem", count_ > 2 ? "s" : "");
  return MakeError(Reason::kInvalidRequest, message,
                   {.uid = first_uid_, .violations = kept_, .metadata = {{"violations", absl::StrCat(count_)}}});
}

}  // namespace stemma
