// The process's file descriptors: how many it may open, how many it has open, and which outlive exec.
#pragma once

#include <cstdint>

namespace stemma {

struct DescriptorCount {
  uint64_t limit = 0;  // RLIMIT_NOFILE in force
  uint64_t open = 0;
};

DescriptorCount CountDescriptors();

// Opens /dev/null in the place of stdin, stdout and stderr where they are closed: else the next file that is opened
// takes their number, and what the process says is written into it. REQUIRES: nothing was opened yet.
void OpenStandardDescriptors();

// Raises the soft RLIMIT_NOFILE to the hard one, before many files are open. Children and exec inherit it.
void RaiseDescriptorLimit();

// Leaves a program that replaces this one stdin, stdout and stderr alone: every other descriptor that is open now,
// whoever opened it, is closed by exec. Needs no free descriptor where the kernel does this itself (5.11 and later).
void CloseDescriptorsAtExec();

}  // namespace stemma
