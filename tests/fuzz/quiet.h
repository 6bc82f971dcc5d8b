// Drivers call this first: warnings of the product about its input, thousands in a second, are not written.
#pragma once

#include "glog/logging.h"
#include "google/protobuf/stubs/logging.h"

namespace stemma::fuzz {

inline void BeQuiet() {
  FLAGS_minloglevel = google::GLOG_FATAL;
  FLAGS_logtostderr = true;
  google::protobuf::SetLogHandler(nullptr);
}

}  // namespace stemma::fuzz
