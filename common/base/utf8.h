// Whether text can be sent to other processes: messages hold UTF-8 alone, and one with other bytes is not read. Pure.
#pragma once

#include <string_view>

namespace stemma {

bool IsUtf8(std::string_view text);

}  // namespace stemma
