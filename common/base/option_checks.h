// What options of all programs take: words, and whole numbers. What is wrong quotes what was given and says what is
// taken, as run.yaml's problems do; CLI11's own checks name numbers behind the words, and take them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stemma {

// Returns the problem with a text; empty: none.
using OptionCheck = std::function<std::string(const std::string&)>;

// Lets these words pass and nothing else.
OptionCheck OneOf(std::vector<std::string> words);

// Lets whole numbers from `min` to `max` pass, both included; a sign, or what overflows, is none.
OptionCheck Whole(uint64_t min, uint64_t max = uint64_t{1} << 53);

}  // namespace stemma
