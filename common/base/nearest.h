// Which known word was meant by one that is not known. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stemma {

// Changes, insertions, removals and swaps of neighbours that make `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b);

// The known word that `word` begins, if it is one alone, else the one of the smallest distance, where that is small for
// its length. "": none is near. Dashes in front do not count.
std::string Nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace stemma
