#include "server/store/spool_writer.h"

#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/protocol/payload_chunks.h"

namespace stemma::server {
namespace {

constexpr int kBufferBytes = 1 << 20;

// Hashes and writes what protobuf serializes, so that a message is never held in its serialized form.
class HashedFile : public google::protobuf::io::CopyingOutputStream {
 public:
  HashedFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  bool Write(const void* buffer, int size) override {
    const std::string_view bytes(static_cast<const char*>(buffer), static_cast<size_t>(size));
    sha_.Update(bytes);
    bytes_ += bytes.size();
    if (failed_.ok()) failed_ = WriteAll(fd_, bytes, path_);
    return failed_.ok();
  }

  // Ends the file with the digest of all that was written.
  absl::StatusOr<internal::v1::SpoolFile> Finish() {
    RETURN_IF_ERROR(failed_);
    const auto digest = sha_.Finish();
    const std::string text(digest.begin(), digest.end());
    RETURN_IF_ERROR(WriteAll(fd_, text, path_));
    internal::v1::SpoolFile file;
    file.set_bytes(bytes_ + text.size());
    file.set_sha256(absl::BytesToHexString(text));
    return file;
  }

  const absl::Status& failed() const { return failed_; }

 private:
  int fd_;
  std::string path_;
  Sha256 sha_;
  uint64_t bytes_ = 0;
  absl::Status failed_;
};

class MessageWriter {
 public:
  MessageWriter(HashedFile& file, uint64_t message_bytes_max)
      : file_(file), message_bytes_max_(message_bytes_max), stream_(&file, kBufferBytes), coded_(&stream_) {}

  void WriteRaw(std::string_view bytes) { coded_.WriteRaw(bytes.data(), static_cast<int>(bytes.size())); }
  void WriteLength(uint64_t length) { coded_.WriteLittleEndian64(length); }

  absl::Status WriteMessage(const google::protobuf::Message& message, const std::string& what) {
    const uint64_t bytes = message.ByteSizeLong();
    if (bytes > message_bytes_max_) {
      return MakeError(Reason::kLimitExceeded, absl::StrCat(what, " takes ", bytes, " bytes on the disk, the limit is ",
                                                            message_bytes_max_, "; send smaller requests"));
    }
    WriteLength(bytes);
    message.SerializeWithCachedSizes(&coded_);
    return coded_.HadError() ? file_.failed() : absl::OkStatus();
  }

  absl::Status Flush() {
    coded_.Trim();
    return stream_.Flush() ? absl::OkStatus() : file_.failed();
  }

 private:
  HashedFile& file_;
  uint64_t message_bytes_max_;
  google::protobuf::io::CopyingOutputStreamAdaptor stream_;
  google::protobuf::io::CodedOutputStream coded_;
};

internal::v1::SpooledHead HeadOf(const TrainingRequest& request, const RequestPlan& plan, const v1::Mesh& mesh) {
  internal::v1::SpooledHead head;
  *head.mutable_header() = request.update;
  head.set_digest(request.digest);
  head.set_num_steps(request.num_steps);
  head.set_num_rollouts(request.num_rollouts);
  head.set_num_tokens(request.num_tokens);
  head.set_bytes(request.bytes);
  *head.mutable_plan() = plan.plan;
  head.set_repeats(plan.repeats);
  *head.mutable_report() = plan.report;
  *head.mutable_mesh() = mesh;
  for (const StepNumbers& numbers : plan.steps) {
    internal::v1::StepNormalization& step = *head.add_steps();
    step.set_denominator(numbers.denominator);
    step.mutable_rollout_weights()->Add(numbers.rollout_weights.begin(), numbers.rollout_weights.end());
    step.set_num_loss_tokens(numbers.loss_tokens);
  }
  return head;
}

}  // namespace

absl::StatusOr<internal::v1::SpoolFile> WriteSpooled(int fd, const std::string& path, const TrainingRequest& request,
                                                     const RequestPlan& plan, const v1::Mesh& mesh,
                                                     uint64_t message_bytes_max) {
  CHECK(request.kind == TrainingRequest::Kind::kUpdate) << "only updates are spooled";
  CHECK_EQ(plan.steps.size(), static_cast<size_t>(plan.plan.steps_size())) << path;
  HashedFile file(fd, path);
  MessageWriter writer(file, message_bytes_max);
  writer.WriteRaw(kSpoolMagic);
  RETURN_IF_ERROR(writer.WriteMessage(HeadOf(request, plan, mesh), "the plan of the request"));
  std::vector<uint32_t> groups(request.groups.size());
  std::iota(groups.begin(), groups.end(), 0);
  // The request lives as long as this call, which is all that the chunks need of it.
  const std::shared_ptr<const TrainingRequest> shared(std::shared_ptr<void>(), &request);
  PayloadChunks chunks(request.header().request_id(), shared, std::move(groups));
  while (!chunks.done()) RETURN_IF_ERROR(writer.WriteMessage(chunks.Next(), "a rollout of the request"));
  writer.WriteLength(kSpoolEnd);
  RETURN_IF_ERROR(writer.Flush());
  return file.Finish();
}

}  // namespace stemma::server
