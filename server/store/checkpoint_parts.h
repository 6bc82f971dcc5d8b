// The parts of a checkpoint, put together to files: which rank wrote which bytes, and whether together they are every
// byte of every file once. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_runs.h"
#include "common/model/other_files.h"
#include "google/protobuf/repeated_field.h"
#include "stemma/internal/v1/checkpoint.pb.h"

namespace stemma::server {

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::string_view kClientStateFile = "client_state";  // the server's own; its part says rank 0
inline constexpr std::string_view kOptimFolder = "optim";
// The folders in a checkpoint's that parts may be in. A save has optim/ from its beginning; who writes into another one
// makes it.
inline constexpr std::array<std::string_view, 2> kPartFolders = {kOptimFolder, kChatTemplatesFolder};

using CheckpointParts = google::protobuf::RepeatedPtrField<internal::v1::CheckpointPart>;

// Limits how many pieces a checkpoint has: a manifest says in a few bytes that there are very many.
inline constexpr uint64_t kPiecesMax = uint64_t{1} << 27;

// What a part says in one of its ranges.
struct PartRuns {
  ByteRuns runs;
  int part = 0;  // index among all parts
};

// A file as its parts say it is: together they have every byte from 0 to its end once.
struct FileOfParts {
  uint64_t bytes = 0;
  std::vector<PartRuns> ranges;  // none when the file is empty
  std::vector<int> parts;        // ascending, those without a byte too
};

struct FilePiece {
  uint64_t begin = 0, bytes = 0;
  int part = 0;
};

// Gives the pieces of a file in the order of their bytes, each run of a range as one. Holds a word for each range, not
// for each run. The ranges outlive it.
class PieceOrder {
 public:
  explicit PieceOrder(const std::vector<PartRuns>& ranges);

  bool done() const { return next_.empty(); }
  FilePiece Take();  // REQUIRES: !done()

 private:
  using Next = std::tuple<uint64_t, uint64_t, size_t>;  // begin and number of a run, index of its range

  const std::vector<PartRuns>& ranges_;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next_;  // the run that comes first on top
};

using FilesOfParts = std::map<std::string, FileOfParts>;  // by name: NAME, or FOLDER/NAME of kPartFolders

// Says whether a part may have a file of that name: NAME or FOLDER/NAME, and neither manifest.json nor FOLDER. Errors:
// InvalidArgument, with the name and the rule.
absl::Status CheckPartName(std::string_view file);

// Returns a range of a part that ArrangeParts took.
ByteRuns RunsOf(const internal::v1::ByteRange& range);

// Errors: InvalidArgument - a name, a digest that is none, a range that is empty or out of order, runs that overlap, a
// hole, an overlap, ranges whose end no 63 bits hold, more than kPiecesMax pieces; names the file and the ranks.
absl::StatusOr<FilesOfParts> ArrangeParts(const CheckpointParts& parts);

// The bytes of what lies in a checkpoint's folder, by name; nullopt: it is no regular file.
using FoundFiles = std::map<std::string, std::optional<uint64_t>>;

// What lies in the folder and is in no part.
enum class Extras {
  kRefused,  // while it is saved: a rank has not said that it wrote it
  kIgnored,  // later: a user's notes, or what a file manager leaves; but for what a loader of models would take
};

// Compares with the files that there are. Errors: InvalidArgument - a file is missing, no regular file, has another
// size, or is in no part.
absl::Status CheckFiles(const FilesOfParts& files, const CheckpointParts& parts, const FoundFiles& found,
                        Extras extras);

}  // namespace stemma::server
