#include "common/base/printable.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace stemma {

std::string Printable(std::string_view text, std::string_view line_end) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool before_c1 =
        byte == 0xc2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xe0) == 0x80;
    if (byte == '\n') {
      out.append(line_end);
    } else if (absl::ascii_iscntrl(byte)) {
      absl::StrAppend(&out, "\\x", absl::Hex(byte, absl::kZeroPad2));
    } else if (before_c1) {
      absl::StrAppend(&out, "\\u00", absl::Hex(static_cast<unsigned char>(text[++i]), absl::kZeroPad2));
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace stemma
