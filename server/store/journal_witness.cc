#include "server/store/journal_witness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

constexpr std::string_view kMagic = "STMJLAST";
constexpr size_t kHashBytes = 32;
constexpr size_t kMarkBytes = 8 + 8 + kHashBytes;
constexpr size_t kFileBytes = kMarkBytes + kHashBytes;

std::string ChecksumOf(std::string_view bytes) {
  Sha256 sha;
  sha.Update(bytes);
  const auto digest = sha.Finish();
  return {digest.begin(), digest.end()};
}

std::string TextOf(const JournalMark& mark) {
  CHECK_EQ(mark.hash.size(), kHashBytes);
  std::string text(kMagic);
  text.append(reinterpret_cast<const char*>(&mark.n), sizeof(mark.n));
  text += mark.hash;
  text += ChecksumOf(text);
  return text;
}

}  // namespace

absl::StatusOr<std::optional<JournalMark>> JournalWitness::Read(const std::string& path) {
  absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (absl::IsNotFound(file.status())) return std::nullopt;
  RETURN_IF_ERROR(file.status());
  std::string text(kFileBytes, '\0');
  if (file->bytes() == kFileBytes) RETURN_IF_ERROR(file->ReadAt(0, text.data(), text.size()));
  const std::string_view marked(text.data(), kMarkBytes);
  if (text.substr(kMarkBytes) != ChecksumOf(marked) || marked.substr(0, kMagic.size()) != kMagic) {
    LOG(WARNING) << path << " is damaged and is written anew: that the journal is complete is not known from it";
    return std::nullopt;
  }
  JournalMark mark;
  std::memcpy(&mark.n, text.data() + kMagic.size(), sizeof(mark.n));
  mark.hash = text.substr(kMarkBytes - kHashBytes, kHashBytes);
  return mark;
}

absl::StatusOr<JournalWitness> JournalWitness::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus("open", path, errno);
  // A longer file would stay longer, and be taken for damaged.
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus("stat", path, errno);
  if (info.st_size > static_cast<off_t>(kFileBytes) && ftruncate(fd.get(), kFileBytes) != 0) {
    return ErrnoStatus("truncate", path, errno);
  }
  return JournalWitness(path, std::move(fd));
}

absl::Status JournalWitness::Write(const JournalMark& mark) {
  // One call: a process that is killed leaves the old mark or the new one.
  const std::string text = TextOf(mark);
  const ssize_t count = pwrite(fd_.get(), text.data(), text.size(), 0);
  if (count < 0) return ErrnoStatus("write", path_, errno);
  return static_cast<size_t>(count) == text.size() ? absl::OkStatus() : ErrnoStatus("write", path_, ENOSPC);
}

absl::Status JournalWitness::Sync() {
  return fdatasync(fd_.get()) == 0 ? absl::OkStatus() : ErrnoStatus("fsync", path_, errno);
}

}  // namespace stemma::server
