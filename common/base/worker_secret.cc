#include "common/base/worker_secret.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/file_writer.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace stemma {
namespace {

constexpr size_t kRandomBytes = 32;
constexpr size_t kCharactersMin = 32, kCharactersMax = 256;
constexpr uint64_t kFileBytesMax = 4096;

std::array<uint8_t, 32> DigestOfSecret(std::string_view secret) {
  Sha256 sha;
  sha.Update(secret);
  return sha.Finish();
}

}  // namespace

std::string NewWorkerSecret() {
  std::string bytes(kRandomBytes, '\0');
  CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())), 1);
  return absl::BytesToHexString(bytes);
}

absl::Status CheckWorkerSecret(std::string_view secret) {
  const bool printable = std::all_of(secret.begin(), secret.end(),
                                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (printable && secret.size() >= kCharactersMin && secret.size() <= kCharactersMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a worker secret is ", kCharactersMin, " to ", kCharactersMax,
                   " printable characters without spaces, as `openssl rand -hex 32` prints; this one has ",
                   secret.size(), printable ? "" : ", and not all of them are printable"));
}

absl::StatusOr<std::string> WorkerSecretOf(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  RETURN_IF_ERROR(CheckWorkerSecret(text));
  return std::string(text);
}

absl::StatusOr<std::string> ReadWorkerSecret(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string resolved, ResolvePath(path));
  ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(resolved));
  struct stat info;
  if (fstat(file.fd(), &info) != 0) return ErrnoStatus("stat", path, errno);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is readable by others than its owner (mode ",
                                                   absl::StrFormat("%04o", info.st_mode & 07777u),
                                                   "), so it is no secret: chmod 600 it, and make a new one"));
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": belongs to user ", info.st_uid, ", not to this one"));
  }
  if (file.bytes() > kFileBytesMax) return absl::InvalidArgumentError(absl::StrCat(path, ": is no secret: too long"));
  std::string text(file.bytes(), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, text.data(), text.size()));
  absl::StatusOr<std::string> secret = WorkerSecretOf(text);
  if (!secret.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", secret.status().message()));
  return secret;
}

absl::Status WriteWorkerSecret(const std::string& path, std::string_view secret) {
  ASSIGN_OR_RETURN(FileWriter writer, FileWriter::Create(path, 0600));
  RETURN_IF_ERROR(writer.Write(secret.data(), secret.size()));
  RETURN_IF_ERROR(writer.Write("\n", 1));
  return writer.Close();
}

bool SameSecret(std::string_view a, std::string_view b) {
  // Digests have one length: how long the secret is does not show either.
  const auto digest_a = DigestOfSecret(a), digest_b = DigestOfSecret(b);
  return CRYPTO_memcmp(digest_a.data(), digest_b.data(), digest_a.size()) == 0;
}

}  // namespace stemma
