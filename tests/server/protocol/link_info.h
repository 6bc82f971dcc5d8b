// What a worker says of a link, for tests.
#pragma once

#include <cstdint>
#include <string>

#include "stemma/v1/training.pb.h"

namespace stemma::testing {

inline v1::LinkInfo Link(const std::string& axis, uint32_t ranks, double message_s, double byte_s) {
  v1::LinkInfo link;
  link.set_axis(axis);
  link.set_ranks(ranks);
  link.set_message_s(message_s);
  link.set_byte_s(byte_s);
  return link;
}

}  // namespace stemma::testing
