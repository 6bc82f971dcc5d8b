#include "common/base/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace stemma {
namespace {

constexpr uint64_t kFileBytesMax = 1 << 20;

struct Freed {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Certificate = std::unique_ptr<X509, Freed>;
using Key = std::unique_ptr<EVP_PKEY, Freed>;

absl::Status Problem(std::string_view option, const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(option), ": ", path.empty() ? "" : absl::StrCat(path, ": "), std::string(what)));
}

absl::Status OfOption(std::string_view option, const absl::Status& status) {
  return Problem(option, "", std::string(status.message()));
}

std::unique_ptr<BIO, Freed> TextOf(const std::string& text) {
  std::unique_ptr<BIO, Freed> bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  CHECK(bio != nullptr);
  return bio;
}

absl::StatusOr<std::string> ReadPem(std::string_view option, const std::string& path) {
  const absl::StatusOr<std::string> resolved = ResolvePath(path);
  if (!resolved.ok()) return OfOption(option, resolved.status());
  absl::StatusOr<std::string> text = ReadFile(*resolved, kFileBytesMax);
  if (!text.ok()) return OfOption(option, text.status());
  return text;
}

std::string TimeText(const ASN1_TIME* time) {
  tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return "a time that cannot be read";
  return absl::StrFormat("%04d-%02d-%02d %02d:%02d UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                         parts.tm_hour, parts.tm_min);
}

absl::Time EndOf(const X509* certificate) {
  tm parts = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

absl::Status CheckValid(std::string_view option, const std::string& path, const X509* certificate, absl::Time now) {
  time_t seconds = absl::ToTimeT(now);
  const ASN1_TIME* const first = X509_get0_notBefore(certificate);
  const ASN1_TIME* const last = X509_get0_notAfter(certificate);
  if (X509_cmp_time(last, &seconds) <= 0) {  // 0: it cannot be read
    return Problem(option, path, absl::StrCat("a certificate in it ended at ", TimeText(last), ": renew it"));
  }
  if (X509_cmp_time(first, &seconds) >= 0) {
    return Problem(option, path,
                   absl::StrCat("a certificate in it begins at ", TimeText(first), ": look at this machine's clock"));
  }
  return absl::OkStatus();
}

// Returns at least one certificate, in the order of the file; what stands around them is passed over.
absl::StatusOr<std::vector<Certificate>> ReadCertificates(std::string_view option, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadPem(option, path));
  const auto bio = TextOf(text);
  std::vector<Certificate> certificates;
  while (Certificate one{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) {
    certificates.push_back(std::move(one));
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty()) return Problem(option, path, "it holds no certificate in PEM (BEGIN CERTIFICATE)");
  if (!at_end) {
    return Problem(option, path, absl::StrCat("certificate ", certificates.size() + 1, " in it cannot be read"));
  }
  return certificates;
}

absl::StatusOr<Key> ReadKey(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadPem(kTlsKeyOption, path));
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return OfOption(kTlsKeyOption, ErrnoStatus("stat", path, errno));
  if ((info.st_mode & S_IRWXO) != 0) {
    return Problem(
        kTlsKeyOption, path,
        absl::StrCat("every user of this machine may read it (mode ", absl::StrFormat("%04o", info.st_mode & 07777u),
                     "), so it is no secret: chmod 600 it, and have a new one made"));
  }
  bool asked = false;
  const auto refuse = [](char*, int, int, void* was_asked) {
    *static_cast<bool*>(was_asked) = true;
    return -1;
  };
  Key key(PEM_read_bio_PrivateKey(TextOf(text).get(), nullptr, refuse, &asked));
  ERR_clear_error();
  if (asked) return Problem(kTlsKeyOption, path, "it is encrypted: give a key without a passphrase");
  if (key == nullptr) return Problem(kTlsKeyOption, path, "it holds no private key in PEM (BEGIN PRIVATE KEY)");
  return key;
}

// Returns when the first certificate of the chain ends.
absl::StatusOr<absl::Time> CheckOwnCertificate(const TlsFiles& files, absl::Time now) {
  if (files.key.empty()) return Problem(kTlsKeyOption, "", absl::StrCat("is missing: ", kTlsCertOption, " needs it"));
  if (files.cert.empty()) return Problem(kTlsCertOption, "", absl::StrCat("is missing: ", kTlsKeyOption, " needs it"));
  ASSIGN_OR_RETURN(const std::vector<Certificate> chain, ReadCertificates(kTlsCertOption, files.cert));
  for (const Certificate& one : chain) RETURN_IF_ERROR(CheckValid(kTlsCertOption, files.cert, one.get(), now));
  ASSIGN_OR_RETURN(const Key key, ReadKey(files.key));
  const bool match = X509_check_private_key(chain.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (!match) {
    return Problem(kTlsKeyOption, files.key,
                   absl::StrCat("it is not the key of the first certificate in ", files.cert));
  }
  absl::Time end = absl::InfiniteFuture();
  for (const Certificate& one : chain) end = std::min(end, EndOf(one.get()));
  return end;
}

// A bundle may hold some that have ended beside those that count.
absl::Status CheckCa(const std::string& path, absl::Time now) {
  ASSIGN_OR_RETURN(const std::vector<Certificate> bundle, ReadCertificates(kTlsCaOption, path));
  absl::Status problem;
  for (const Certificate& one : bundle) {
    problem = CheckValid(kTlsCaOption, path, one.get(), now);
    if (problem.ok()) break;
  }
  return problem;
}

}  // namespace

absl::StatusOr<absl::Time> CheckTlsFiles(const TlsFiles& files, TlsSide side, absl::Time now) {
  const bool has_own = !files.cert.empty() || !files.key.empty();
  absl::Time end = absl::InfiniteFuture();
  if (has_own) {
    ASSIGN_OR_RETURN(end, CheckOwnCertificate(files, now));
  }
  if (!files.ca.empty()) RETURN_IF_ERROR(CheckCa(files.ca, now));
  if (side == TlsSide::kServer && !files.ca.empty() && !has_own) {
    return Problem(kTlsCertOption, "",
                   absl::StrCat("is missing: ", kTlsCaOption,
                                " asks others for certificates, and without one of its own a server speaks no TLS"));
  }
  if (side == TlsSide::kClient && has_own && files.ca.empty()) {
    return Problem(kTlsCaOption, "",
                   absl::StrCat("is missing: it says that the server speaks TLS, and whose certificates it may have; ",
                                kTlsCertOption, " alone does not"));
  }
  return end;
}

}  // namespace stemma
