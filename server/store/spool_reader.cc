#include "server/store/spool_reader.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/admission/known_fields.h"
#include "common/base/digest.h"
#include "common/base/error.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "server/planner/prefix_rollouts.h"
#include "server/store/spool_writer.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma::server {
namespace {

absl::Status DamagedSpool(const std::string& path, const std::string& what) {
  return MakeError(
      Reason::kCorruptSpool,
      absl::StrCat(path, ": ", what, "; restore the file from a backup, or go on from a later checkpoint"));
}

// Gives the file's bytes in their order, hashed. The digest at its end is not among them.
class HashedInput {
 public:
  HashedInput(const RegularFile& file, const std::string& path)
      : file_(file), path_(path), left_(file.bytes() - kSpoolDigestBytes) {}

  uint64_t left() const { return left_; }

  // The bytes live until the next call. REQUIRES: size <= left().
  absl::StatusOr<std::string_view> Take(uint64_t size) {
    if (buffer_.size() < size) buffer_.resize(size);
    RETURN_IF_ERROR(file_.ReadAt(offset_, buffer_.data(), size));
    offset_ += size;
    left_ -= size;
    const std::string_view bytes(buffer_.data(), size);
    sha_.Update(bytes);
    return bytes;
  }

  absl::StatusOr<uint64_t> TakeLength() {
    uint64_t length = 0;
    if (left_ < sizeof(length)) return DamagedSpool(path_, "ends before its end mark");
    ASSIGN_OR_RETURN(const std::string_view bytes, Take(sizeof(length)));
    std::memcpy(&length, bytes.data(), sizeof(length));
    return length;
  }

  absl::Status TakeMessage(uint64_t length, uint64_t length_max, google::protobuf::Message& message) {
    if (length > left_ || length > length_max) {
      return DamagedSpool(path_, absl::StrCat("a message of ", length, " bytes at byte ", offset_, ", where ", left_,
                                              " are left and the limit is ", length_max));
    }
    ASSIGN_OR_RETURN(const std::string_view bytes, Take(length));
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      return DamagedSpool(path_, absl::StrCat("the message that ends at byte ", offset_, " is none"));
    }
    const std::string unknown = FirstUnknown(message);
    if (unknown.empty()) return absl::OkStatus();
    return MakeError(Reason::kCorruptSpool,
                     absl::StrCat(path_, ": the message that ends at byte ", offset_, " has ", unknown,
                                  ", which this version does not know, so it would compute something else: start the "
                                  "version that kept it, or a newer one; or go on without the steps: --durability "
                                  "rewind"));
  }

  // Drops what a large message has taken.
  void Shrink() { buffer_ = {}; }

  std::string Digest() {
    const auto digest = sha_.Finish();
    return {digest.begin(), digest.end()};
  }

 private:
  const RegularFile& file_;
  const std::string& path_;
  uint64_t offset_ = 0, left_;
  std::string buffer_;
  Sha256 sha_;
};

// Adds the chunk's groups, and joins the one that it continues. False: they do not follow those before.
bool AddChunk(internal::v1::PayloadChunk& chunk, std::vector<v1::PromptGroup>& groups) {
  if (chunk.groups_size() != chunk.group_indices_size()) return false;
  for (int i = 0; i < chunk.groups_size(); ++i) {
    v1::PromptGroup& group = *chunk.mutable_groups(i);
    const size_t index = chunk.group_indices(i);
    if (index == groups.size()) {
      groups.push_back(std::move(group));
      continue;
    }
    if (index + 1 != groups.size() || group.uid() != groups[index].uid()) return false;
    for (v1::Rollout& rollout : *group.mutable_rollouts()) *groups[index].add_rollouts() = std::move(rollout);
  }
  return true;
}

void TakeHead(internal::v1::SpooledHead& head, TrainingRequest& request, SpooledRequest& spooled) {
  request.update.Swap(head.mutable_header());
  request.digest = head.digest();
  request.num_steps = head.num_steps();
  request.num_rollouts = head.num_rollouts();
  request.num_tokens = head.num_tokens();
  request.bytes = head.bytes();
  spooled.plan.Swap(head.mutable_plan());
  for (v1::StepPlan& step : *spooled.plan.mutable_steps()) SetPrefixRollouts(step);  // an older file lacks them
  spooled.repeats = head.repeats();
  spooled.report.Swap(head.mutable_report());
  spooled.mesh = head.has_mesh() ? head.mesh() : MakeMesh({.dp = head.num_ranks()});
  for (const internal::v1::StepNormalization& step : head.steps()) {
    spooled.steps.push_back({.denominator = step.denominator(),
                             .rollout_weights = {step.rollout_weights().begin(), step.rollout_weights().end()},
                             .num_loss_tokens = step.num_loss_tokens()});
  }
}

// Reads all messages, and the end mark.
absl::Status ReadMessages(HashedInput& input, const std::string& path, uint64_t message_bytes_max,
                          TrainingRequest& request, SpooledRequest& spooled) {
  ASSIGN_OR_RETURN(const std::string_view magic, input.Take(kSpoolMagic.size()));
  if (magic != kSpoolMagic) {
    return MakeError(
        Reason::kCorruptSpool,
        absl::StrCat(path,
                     ": holds a request that another version of Stemma kept, which may count otherwise; a "
                     "checkpoint of a later step makes it useless: put one that is damaged or missing back "
                     "from a backup, verify it (stemma checkpoint verify) and start the server again; or go on without "
                     "the steps: --durability rewind"));
  }
  internal::v1::SpooledHead head;
  ASSIGN_OR_RETURN(const uint64_t head_bytes, input.TakeLength());
  RETURN_IF_ERROR(input.TakeMessage(head_bytes, message_bytes_max, head));
  TakeHead(head, request, spooled);
  if (spooled.steps.size() != static_cast<size_t>(spooled.plan.steps_size())) {
    return DamagedSpool(path, "does not say what each of its steps is normalized with");
  }
  input.Shrink();
  for (bool last = false; !last;) {
    internal::v1::PayloadChunk chunk;
    ASSIGN_OR_RETURN(const uint64_t chunk_bytes, input.TakeLength());
    RETURN_IF_ERROR(input.TakeMessage(chunk_bytes, message_bytes_max, chunk));
    if (!AddChunk(chunk, request.groups)) return DamagedSpool(path, "its groups are out of order");
    last = chunk.last();
  }
  ASSIGN_OR_RETURN(const uint64_t end, input.TakeLength());
  if (end != kSpoolEnd || input.left() != 0) return DamagedSpool(path, "goes on behind its last message");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SpooledRequest> ReadSpooled(const RegularFile& file, const std::string& path,
                                           const internal::v1::SpoolFile& row, uint64_t message_bytes_max) {
  if (file.bytes() != row.bytes() || file.bytes() < kSpoolMagic.size() + kSpoolDigestBytes) {
    return DamagedSpool(path, absl::StrCat("has ", file.bytes(), " bytes, the journal says ", row.bytes()));
  }
  std::string digest(kSpoolDigestBytes, '\0');
  RETURN_IF_ERROR(file.ReadAt(file.bytes() - kSpoolDigestBytes, digest.data(), digest.size()));
  if (absl::BytesToHexString(digest) != row.sha256()) {
    return DamagedSpool(path, absl::StrCat("has the digest ", absl::BytesToHexString(digest), ", the journal says ",
                                           row.sha256(), ": damaged, or another request's"));
  }
  HashedInput input(file, path);
  auto request = std::make_shared<TrainingRequest>();
  SpooledRequest spooled;
  RETURN_IF_ERROR(ReadMessages(input, path, message_bytes_max, *request, spooled));
  if (input.Digest() != digest) return DamagedSpool(path, "its contents are not those of its digest");
  spooled.request = GivenBackOnceDropped(std::move(request));
  return spooled;
}

std::string SpoolMagicOf(const RegularFile& file) {
  std::string magic(kSpoolMagic.size(), '\0');
  const bool read = file.bytes() >= magic.size() && file.ReadAt(0, magic.data(), magic.size()).ok();
  return read && magic.starts_with(kSpoolMagicOfAnyVersion) ? magic : "";
}

}  // namespace stemma::server
