#include "server/protocol/written_exports.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace stemma::server {

void WrittenExports::Forget(const std::string& name) {
  std::erase_if(newest_last_, [&name](const WrittenExport& known) { return known.name == name; });
}

void WrittenExports::Add(WrittenExport written) {
  Forget(written.name);
  newest_last_.push_back(std::move(written));
  if (newest_last_.size() > kKept) newest_last_.pop_front();
}

std::map<std::string, std::string> WrittenExports::FactsOf(const std::string& name) const {
  for (const WrittenExport& known : newest_last_) {
    if (known.name != name) continue;
    return {{"lineage", known.lineage}, {"step", absl::StrCat(known.step)}, {"dtype", known.dtype}};
  }
  return {};
}

}  // namespace stemma::server
