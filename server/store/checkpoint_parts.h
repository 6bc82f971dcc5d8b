// The parts of a checkpoint, put together to files: which rank wrote which bytes, and whether together they are every
// byte of every file once. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/repeated_field.h"
#include "stemma/internal/v1/checkpoint.pb.h"

namespace stemma::server {

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::string_view kClientStateFile = "client_state";  // the server's own; its part says rank 0
inline constexpr std::string_view kOptimFolder = "optim";

using CheckpointParts = google::protobuf::RepeatedPtrField<internal::v1::CheckpointPart>;

struct FilePiece {
  uint64_t begin = 0, bytes = 0;
  int part = 0;  // index among all parts
};

// A file as its parts say it is: the pieces ascend from byte 0 to its end, without hole or overlap.
struct FileOfParts {
  uint64_t bytes = 0;
  std::vector<FilePiece> pieces;  // none when the file is empty
  std::vector<int> parts;         // ascending, those without a byte too
};

using FilesOfParts = std::map<std::string, FileOfParts>;  // by name: NAME or optim/NAME

// Says whether a part may have a file of that name: NAME or optim/NAME, and neither manifest.json nor optim. Errors:
// InvalidArgument, with the name and the rule.
absl::Status CheckPartName(std::string_view file);

// Errors: InvalidArgument - a name, a digest that is none, a range that is empty or out of order, a hole, an overlap,
// ranges whose end no 63 bits hold; names the file and the ranks.
absl::StatusOr<FilesOfParts> ArrangeParts(const CheckpointParts& parts);

// Compares with the files that there are, by name. Errors: InvalidArgument - a file is missing, has another size, or is
// in no part.
absl::Status CheckFiles(const FilesOfParts& files, const CheckpointParts& parts,
                        const std::map<std::string, uint64_t>& bytes_of_file);

// Says who wrote the file: "rank 3", "ranks 0, 1 and 6 more", "the server".
std::string WritersOf(const std::string& name, const FileOfParts& file, const CheckpointParts& parts);

}  // namespace stemma::server
