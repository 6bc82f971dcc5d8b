// How the answers to one Save leave. Free of LibTorch: worker/rpc passes it to the engine.
#pragma once

#include <functional>

#include "stemma/internal/v1/worker.pb.h"

namespace stemma::worker {

struct SaveAnswers {
  // The state is copied, or written: called once, on the engine thread, before `done`.
  std::function<void(internal::v1::SaveStaged)> staged = [](const internal::v1::SaveStaged&) {};
  // Called once, on the saver's own thread, also where the engine thread wrote the files.
  std::function<void(internal::v1::SaveDone)> done = [](const internal::v1::SaveDone&) {};
};

}  // namespace stemma::worker
