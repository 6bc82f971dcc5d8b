// The process's file descriptors: how many it may open, and how many it has open.
#pragma once

#include <cstdint>

namespace stemma {

struct DescriptorCount {
  uint64_t limit = 0;  // RLIMIT_NOFILE in force
  uint64_t open = 0;
};

DescriptorCount CountDescriptors();

// Raises the soft RLIMIT_NOFILE to the hard one, before any file is opened for a client. Children inherit it.
void RaiseDescriptorLimit();

}  // namespace stemma
