// Numbers as people read them. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace stemma {

std::string HumanCount(double count);      // "950", "1.31M", "2.4e+30"
std::string HumanFlops(double flops);      // "1.31 TFLOP"
std::string HumanBytes(double bytes);      // "512 B", "1.20 GiB"
std::string HumanSeconds(double seconds);  // "250 us", "1.50 s", "3 min 20 s"
std::string HumanRatio(double ratio);      // "3.62x"

}  // namespace stemma
