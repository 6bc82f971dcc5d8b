// The lineage of weights that a command of many requests began with: what it says to each request, and what its user is
// told when those weights are lost (docs/errors.md, "Lineages"). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "stemma/v1/training.pb.h"

namespace stemma::cli {

class LineagePin {
 public:
  // `follow`: goes on with whatever weights the server has.
  explicit LineagePin(bool follow) : follow_(follow) {}

  const std::string& lineage() const { return lineage_; }

  // Call it before the first request. A server that names no lineage is held to none.
  void Begin(const v1::ModelInfo& model);

  // Holds the server to the lineage, unless lineages are followed.
  void Set(v1::RequestHeader& header) const;

  // True: the request's weights are lost and lineages are followed, so that the next request may be sent.
  bool MayGoOn(const absl::Status& error) const;

  // Moves to the lineage that the answer, or the error, names. Returns what to tell the user: empty unless the name
  // is another one than before.
  std::string Saw(const v1::RequestStatus& status);
  std::string Saw(const absl::Status& error);

  // The error; where weights are lost, with the steps that this command saw of them, and what can be done.
  absl::Status Explained(const absl::Status& error) const;

 private:
  std::string MoveTo(const std::string& lineage, uint64_t step);

  bool follow_;
  std::string lineage_;
  uint64_t step_ = 0;  // the highest seen of it
};

}  // namespace stemma::cli
