// What a fuzz target is: NAME_fuzz.cc defines these two functions for one kind of input that strangers, or a damaged
// disk, may hand to the product. Called by libFuzzer under the fuzz preset (make fuzz), by plain_driver.cc in every
// other build.
//
// A target takes any bytes. It aborts (CHECK) where the product breaks a promise about them, and knows nothing of the
// iterations before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stemma::fuzz {

// Returns inputs that the product accepts, to begin with: made by the code that writes such input, so that they follow
// its format.
std::vector<std::string> Seeds();

}  // namespace stemma::fuzz

// Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Changes an input in place and returns its new size: libFuzzer's, or plain_driver.cc's. For targets that know the
// structure of their input and define LLVMFuzzerCustomMutator.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
