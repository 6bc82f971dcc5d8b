#include "server/store/checkpoint_parts.h"

#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"

namespace stemma::server {
namespace {

using internal::v1::ByteRange;
using internal::v1::CheckpointPart;

constexpr size_t kDigestDigits = 64;
constexpr size_t kRanksShown = 8;
constexpr uint64_t kFileBytesMax = std::numeric_limits<int64_t>::max();  // off_t ends here

bool IsPartFolder(std::string_view name) {
  return std::find(kPartFolders.begin(), kPartFolders.end(), name) != kPartFolders.end();
}

bool IsDigest(const std::string& text) {
  return text.size() == kDigestDigits &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

absl::Status Wrong(const CheckpointPart& part, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(part.file(), ": the part of rank ", part.rank(), " ", what));
}

// Checks that the range has bytes, of which none is there twice, and that a file can hold them.
absl::Status CheckRange(const CheckpointPart& part, const ByteRange& range) {
  const std::string text = absl::StrCat("a range of ", range.runs() == 0 ? "" : absl::StrCat(range.runs(), " x "),
                                        range.bytes(), " bytes at byte ", range.begin());
  if (range.bytes() == 0) return Wrong(part, absl::StrCat("has ", text, ", which is empty"));
  const uint64_t runs_after = range.runs() == 0 ? 0 : range.runs() - 1;
  if (range.runs() == 1 || (range.runs() == 0 ? range.stride() != 0 : range.stride() <= range.bytes())) {
    return Wrong(part, absl::StrCat("has ", text, ", ", range.stride(), " apart, which are no runs"));
  }
  const bool fits = range.begin() <= kFileBytesMax && range.bytes() <= kFileBytesMax - range.begin() &&
                    (runs_after == 0 || range.stride() <= (kFileBytesMax - range.begin() - range.bytes()) / runs_after);
  return fits ? absl::OkStatus() : Wrong(part, absl::StrCat("has ", text, ", which no file can hold"));
}

absl::Status CheckPart(const CheckpointPart& part) {
  RETURN_IF_ERROR(CheckPartName(part.file()));
  if (!IsDigest(part.sha256())) return Wrong(part, "has a digest that is not 64 hexadecimal digits");
  const ByteRange* before = nullptr;
  for (const ByteRange& range : part.ranges()) {
    RETURN_IF_ERROR(CheckRange(part, range));
    // Two ranges without runs that touch are one.
    const uint64_t apart = before != nullptr && before->runs() == 0 && range.runs() == 0 ? 1 : 0;
    if (before != nullptr && range.begin() < RunsOf(*before).end() + apart) {
      return Wrong(part, absl::StrCat("has a range at byte ", range.begin(), ", which touches the one before"));
    }
    before = &range;
  }
  return absl::OkStatus();
}

// Checks that each piece begins where the one before ends.
absl::Status Join(const std::string& name, const CheckpointParts& parts, FileOfParts& file) {
  for (PieceOrder order(file.ranges); !order.done();) {
    const FilePiece piece = order.Take();
    if (piece.begin != file.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": the part of rank ", parts[piece.part].rank(), " has bytes from ", piece.begin,
                       ", those before end at ", file.bytes,
                       piece.begin < file.bytes ? ": some are written twice" : ": nobody wrote those between"));
    }
    file.bytes += piece.bytes;
  }
  return absl::OkStatus();
}

// Says who wrote the file: "rank 3", "ranks 0, 1 and 6 more", "the server".
std::string WritersOf(const std::string& name, const FileOfParts& file, const CheckpointParts& parts) {
  if (name == kClientStateFile) return "the server";
  std::set<uint32_t> ranks;
  for (const int part : file.parts) ranks.insert(parts[part].rank());
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  size_t shown = 0;
  for (const uint32_t rank : ranks) {
    if (shown == kRanksShown) return absl::StrCat(text, " and ", ranks.size() - shown, " more");
    absl::StrAppend(&text, shown++ == 0 ? " " : ", ", rank);
  }
  return text;
}

}  // namespace

absl::Status CheckPartName(std::string_view file) {
  std::string_view name = file;
  if (const size_t slash = file.find('/'); slash != file.npos && IsPartFolder(file.substr(0, slash))) {
    name.remove_prefix(slash + 1);
  } else if (name == kManifestFile || IsPartFolder(name)) {
    return absl::InvalidArgumentError(absl::StrCat("no part of a checkpoint may be named \"", std::string(file), "\""));
  }
  return CheckFileName(name);
}

ByteRuns RunsOf(const ByteRange& range) {
  return {.begin = range.begin(),
          .length = range.bytes(),
          .runs = std::max<uint64_t>(range.runs(), 1),
          .stride = range.stride()};
}

PieceOrder::PieceOrder(const std::vector<PartRuns>& ranges) : ranges_(ranges) {
  for (size_t i = 0; i < ranges.size(); ++i) next_.emplace(ranges[i].runs.begin, 0, i);
}

FilePiece PieceOrder::Take() {
  const auto [begin, run, index] = next_.top();
  next_.pop();
  const PartRuns& range = ranges_[index];
  if (run + 1 < range.runs.runs) next_.emplace(begin + range.runs.stride, run + 1, index);
  return {begin, range.runs.length, range.part};
}

absl::StatusOr<FilesOfParts> ArrangeParts(const CheckpointParts& parts) {
  FilesOfParts files;
  uint64_t pieces = 0;
  for (int i = 0; i < parts.size(); ++i) {
    RETURN_IF_ERROR(CheckPart(parts[i]));
    FileOfParts& file = files[parts[i].file()];
    file.parts.push_back(i);
    for (const ByteRange& range : parts[i].ranges()) {
      const PartRuns& added = file.ranges.emplace_back(PartRuns{RunsOf(range), i});
      if (added.runs.runs > kPiecesMax - pieces) {
        return Wrong(parts[i], absl::StrCat("makes more than the ", kPiecesMax, " pieces that a checkpoint may have"));
      }
      pieces += added.runs.runs;
    }
  }
  for (auto& [name, file] : files) RETURN_IF_ERROR(Join(name, parts, file));
  return files;
}

namespace {

absl::Status CheckFound(const std::string& name, const std::optional<uint64_t>& bytes) {
  if (bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(absl::CEscape(name), ": is not a regular file"));
}

// Tells whether a part lies in a folder of that name. Where none does, somebody else put there what bears the name.
bool HasPartIn(const FilesOfParts& files, std::string_view folder) {
  const auto next = files.upper_bound(absl::StrCat(std::string(folder), "/"));
  return next != files.end() && next->first.starts_with(absl::StrCat(std::string(folder), "/"));
}

// Whether who opens a folder as a model may read a file of that name.
bool LoadersTake(const std::string& name) {
  return absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".json");
}

}  // namespace

absl::Status CheckFiles(const FilesOfParts& files, const CheckpointParts& parts, const FoundFiles& found,
                        Extras extras) {
  for (const std::string_view folder : kPartFolders) {
    if (!found.contains(std::string(folder)) || !HasPartIn(files, folder)) continue;
    return absl::InvalidArgumentError(absl::StrCat(std::string(folder), ": is no folder, or a link"));
  }
  for (const auto& [name, file] : files) {
    const auto there = found.find(name);
    const std::string said = absl::StrCat(file.bytes, " bytes were written by ", WritersOf(name, file, parts));
    if (there == found.end()) return absl::InvalidArgumentError(absl::StrCat(name, ": is missing; its ", said));
    RETURN_IF_ERROR(CheckFound(name, there->second));
    if (*there->second != file.bytes) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": has ", *there->second, " bytes; ", said));
    }
  }
  for (const auto& [name, bytes] : found) {
    if (files.contains(name) || (extras == Extras::kIgnored && !LoadersTake(name))) continue;
    RETURN_IF_ERROR(CheckFound(name, bytes));
    return absl::InvalidArgumentError(absl::StrCat(
        absl::CEscape(name), ": is no file of the checkpoint, nobody says that it wrote its ", *bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace stemma::server
