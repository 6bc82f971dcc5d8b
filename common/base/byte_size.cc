#include "common/base/byte_size.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace stemma {
namespace {

constexpr char kUnits[] = "kmgtp";
constexpr size_t kTextBytesMax = 40;

absl::Status RefuseSize(std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CEscape(std::string(text.substr(0, kTextBytesMax))),
                   "\" is not a size: write bytes, or a number with KB, MB, GB or TB (powers of 1024), as in 20GB"));
}

// How often 1024 is multiplied in; -1: no unit.
int PowerOf(const std::string& unit) {
  if (unit.empty() || unit == "b") return 0;
  const char* letter = std::find(std::begin(kUnits), std::end(kUnits) - 1, unit[0]);
  if (letter == std::end(kUnits) - 1) return -1;
  const std::string rest = unit.substr(1);
  return rest.empty() || rest == "b" || rest == "ib" ? static_cast<int>(letter - std::begin(kUnits)) + 1 : -1;
}

bool IsNumber(const std::string& text) {
  const auto is_digit = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); };
  return !text.empty() && is_digit(text.front()) && is_digit(text.back()) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return is_digit(c) || c == '.'; }) &&
         std::count(text.begin(), text.end(), '.') <= 1;
}

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(std::string_view text) {
  if (text.size() > kTextBytesMax) return RefuseSize(text);
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string number(text.substr(0, end));
  const std::string unit =
      absl::AsciiStrToLower(absl::StripAsciiWhitespace(absl::string_view(text.data() + end, text.size() - end)));
  const int power = PowerOf(unit);
  if (!IsNumber(number) || power < 0) return RefuseSize(text);
  const uint64_t factor = uint64_t{1} << (10 * power);
  uint64_t whole = 0;
  if (absl::SimpleAtoi(number, &whole)) {
    if (whole > UINT64_MAX / factor) return RefuseSize(text);
    return whole * factor;
  }
  double value = 0;
  if (!absl::SimpleAtod(number, &value)) return RefuseSize(text);
  const double bytes = std::floor(value * static_cast<double>(factor));
  // 2^53: below it a double holds every whole number.
  if (bytes >= 9007199254740992.0 || (power == 0 && bytes != value)) return RefuseSize(text);
  return static_cast<uint64_t>(bytes);
}

}  // namespace stemma
