#include "worker/checkpoint/part_writer.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace stemma::worker {

absl::StatusOr<PartWriter> PartWriter::Open(const std::string& folder, const std::string& name, uint32_t rank) {
  ASSIGN_OR_RETURN(SharedFile file, SharedFile::Open(absl::StrCat(folder, "/", name)));
  PartWriter writer(std::move(file));
  writer.part_.set_file(name);
  writer.part_.set_rank(rank);
  return writer;
}

void PartWriter::Begin(const ByteRuns& runs) {
  CHECK_GT(runs.bytes(), 0u) << file_.path();
  CHECK_EQ(appended_, runs_.bytes()) << file_.path() << ": the bytes before are whole";
  const bool first = part_.ranges().empty();
  CHECK(first || runs.begin >= runs_.end()) << file_.path() << ": ranges ascend";
  const bool joins = !first && runs.begin == runs_.end() && runs.runs == 1 && runs_.runs == 1;
  internal::v1::ByteRange& range = joins ? *part_.mutable_ranges()->rbegin() : *part_.add_ranges();
  if (!joins) range.set_begin(runs.begin);
  range.set_bytes(range.bytes() + runs.length);
  if (runs.runs > 1) {
    range.set_runs(runs.runs);
    range.set_stride(runs.stride);
  }
  runs_ = runs;
  appended_ = 0;
}

absl::Status PartWriter::Append(std::string_view bytes) {
  const uint64_t first = appended_;
  appended_ += bytes.size();
  CHECK_LE(appended_, runs_.bytes()) << file_.path();
  digest_.Update(bytes);
  return file_.Write(runs_, first, bytes);
}

absl::StatusOr<internal::v1::CheckpointPart> PartWriter::Close() {
  RETURN_IF_ERROR(file_.Close());
  part_.set_sha256(digest_.FinishHex());
  return part_;
}

}  // namespace stemma::worker
