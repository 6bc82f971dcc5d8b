// A data-parallel rank that makes the calls of another one and tells what begins and ends, in the order of its thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tests/testing/namespaces.h"
#include "worker/parallel/communicator.h"

namespace stemma::testing {

// When a collective that may be left in flight says that it is done.
enum class DoneIs { kWhenItIs, kNever };

// `tell` hears the name of each call, ("gradients", true) when it begins and ("gradients", false) when it has ended, on
// the thread that makes it. Reduce-scatters and all-gathers stay in flight; the others end in their start.
std::unique_ptr<Communicator> MakeRecordingRank(std::unique_ptr<Communicator> right, DoneIs done,
                                                std::function<void(const std::string& name, bool begins)> tell);

}  // namespace stemma::testing
