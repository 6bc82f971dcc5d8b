// Text that came from others, for a log or a terminal. What a client sent, or a file holds, may stand in it, and
// whoever reads it may sit at a terminal, which obeys control characters: those of ASCII, and U+0080 to U+009F in
// UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace stemma {

// Returns the text with \x1b in the place of such a character, \u009b for one beyond ASCII, and `line_end` in the place
// of each end of a line.
std::string Printable(std::string_view text, std::string_view line_end);

}  // namespace stemma
