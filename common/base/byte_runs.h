// Runs of bytes of a file, equally long and equally far apart: a box of a matrix that lies there row by row. One run is
// a plain range. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "common/base/status_macros.h"

namespace stemma {

struct ByteRuns {
  uint64_t begin = 0;   // of the first run
  uint64_t length = 0;  // of each
  uint64_t runs = 1;
  uint64_t stride = 0;  // from the begin of a run to that of the next, >= length; not read where there is one

  uint64_t bytes() const { return length * runs; }
  // Returns where the last run ends.
  uint64_t end() const { return begin + (runs - 1) * stride + length; }
  // Returns the place in the file of the byte that is number `index` of all runs.
  uint64_t PlaceOf(uint64_t index) const { return begin + index / length * stride + index % length; }
  bool operator==(const ByteRuns&) const = default;
};

// Calls fn(place, done, count) for bytes [first, first + count) of all runs, run by run: `count` bytes of the file at
// `place`, of which `done` came before. Ends with its first error.
template <typename Function>
absl::Status ForEachRun(const ByteRuns& runs, uint64_t first, uint64_t count, const Function& fn) {
  for (uint64_t done = 0; done < count;) {
    const uint64_t in_run = std::min(runs.length - (first + done) % runs.length, count - done);
    RETURN_IF_ERROR(fn(runs.PlaceOf(first + done), done, in_run));
    done += in_run;
  }
  return absl::OkStatus();
}

}  // namespace stemma
