// A folder that a process works in by its path, for as long as that leads to it: somebody may move the folder and put
// another one there, or unmount its disk, and files of two runs would get mixed.
//
// Thread safety: all methods are const.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace stemma {

class HeldFolder {
 public:
  // Errors: those of opening it.
  static absl::StatusOr<HeldFolder> Open(std::string path);

  // Tells whether the path leads to this folder still, by links too. Errors: INTERNAL - it leads to another one, or
  // nowhere; says what to do. Where that cannot be told, whoever uses the path hears so by itself.
  absl::Status Check() const;

 private:
  HeldFolder(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;  // held: while it is, no other folder gets its number
};

}  // namespace stemma
