// Inputs that are a list of protobuf messages, each behind its length, and changes of them that stay such a list: bytes
// changed at random are hardly ever a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "google/protobuf/message.h"

namespace stemma::fuzz {

// Cuts the input into the bytes of its messages. A length beyond the input's end takes what is left.
std::vector<std::string> SplitMessages(std::string_view input);

// Joins messages to an input.
std::string JoinMessages(const std::vector<std::string>& messages);

// Joins messages of one type.
template <typename M>
std::string JoinAll(const std::vector<M>& messages) {
  std::vector<std::string> texts;
  for (const M& message : messages) texts.push_back(message.SerializeAsString());
  return JoinMessages(texts);
}

// Is the LLVMFuzzerCustomMutator of an input whose messages are of `prototype`'s type: fields get other values, of the
// same list or from the edges of their type; messages and elements come, go, are doubled and change places; at times
// bytes are changed without regard to any of it.
size_t MutateMessages(const google::protobuf::Message& prototype, uint8_t* data, size_t size, size_t max_size,
                      unsigned seed);

}  // namespace stemma::fuzz
