#include "common/base/option_checks.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace stemma {

OptionCheck OneOf(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& text) {
    if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
    return absl::StrCat("\"", text, "\" is not one of ", absl::StrJoin(words, ", "));
  };
}

OptionCheck Whole(uint64_t min, uint64_t max) {
  return [min, max](const std::string& text) {
    uint64_t number = 0;
    const bool digits = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
    if (digits && absl::SimpleAtoi(text, &number) && number >= min && number <= max) return std::string();
    return absl::StrCat("\"", text, "\" is not a whole number from ", min, " to ", max);
  };
}

}  // namespace stemma
