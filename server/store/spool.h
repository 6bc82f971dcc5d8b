// The spool: each accepted request in a file of its own, <directory>/spool/<name>, so that its steps can be computed
// again.
//
// A file is there whole or not at all, and durable once Write returned. The journal's row says its bytes and digest,
// and Read gives back nothing else. Names are those of CheckFileName (common/base/names.h); links are not followed.
// Where the path leads to another folder than the one that was opened, nothing is written, read or removed there.
// Thread safety: calls share only the folder, and may run on several threads; no two at once about the same name.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/admission/training_request.h"
#include "common/base/held_folder.h"
#include "server/protocol/request_plan.h"
#include "server/store/spool_reader.h"
#include "server/store/spool_writer.h"
#include "stemma/internal/v1/journal.pb.h"

namespace stemma::server {

class Spool {
 public:
  // Creates the folder if need be, and removes what writers that were killed left unfinished: no other process may use
  // it. What of that cannot be removed stays, with a warning. Errors: those of the disk (common/base/file.h).
  static absl::StatusOr<Spool> Open(const std::string& directory, uint64_t message_bytes_max = kSpoolMessageBytesMax);

  // Replaces a file of that name. After an error nothing is left of it. Errors: DISK_FULL, FILE_TOO_LARGE;
  // LIMIT_EXCEEDED - the plan or a rollout is too long for protobuf; INTERNAL - the folder is gone, or another one;
  // InvalidArgument - the name. REQUIRES: an update.
  absl::StatusOr<internal::v1::SpoolFile> Write(const std::string& name, const TrainingRequest& request,
                                                const RequestPlan& plan, const v1::Mesh& mesh) const;
  // Errors: CORRUPT_SPOOL - the file is damaged, missing, or another one; names it.
  absl::StatusOr<SpooledRequest> Read(const internal::v1::SpoolFile& file) const;
  // Tells whether another version of this program kept the file. Nothing else is looked at; one that is missing or
  // damaged is of this version. Errors: PermissionDenied - the file is another user's.
  absl::StatusOr<bool> IsOfAnotherVersion(const std::string& name) const;
  // Returns OK too when there is no such file.
  absl::Status Remove(const std::string& name) const;
  // Returns the names of the spooled requests, sorted; other files are none.
  absl::StatusOr<std::vector<std::string>> Names() const;
  // Removes the spooled requests whose names are not in `keep`, and returns their names, sorted. Other files stay, and,
  // with a warning, what cannot be removed.
  absl::StatusOr<std::vector<std::string>> Sweep(const std::set<std::string>& keep) const;

 private:
  Spool(std::string folder, HeldFolder held, uint64_t message_bytes_max)
      : folder_(std::move(folder)), held_(std::move(held)), message_bytes_max_(message_bytes_max) {}

  absl::StatusOr<std::string> PathOf(const std::string& name) const;

  std::string folder_;
  HeldFolder held_;
  uint64_t message_bytes_max_;
};

}  // namespace stemma::server
