#include "common/rpc/tls_check.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/objects.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

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
constexpr int kRsaBitsMin = 2048;

struct Freed {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
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

absl::Time TimeOf(const ASN1_TIME* time) {
  tm parts = {};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? absl::FromTM(parts, absl::UTCTimeZone()) : absl::InfinitePast();
}

TlsValidity ValidityOf(const X509* certificate) {
  const absl::Time begins = TimeOf(X509_get0_notBefore(certificate)), ends = TimeOf(X509_get0_notAfter(certificate));
  return {ends, ends - begins};
}

// Returns what is wrong at `now`: "ended at ...", "begins at ..."; "": nothing is.
std::string TimeProblem(const X509* certificate, absl::Time now) {
  const absl::Time begins = TimeOf(X509_get0_notBefore(certificate)), ends = TimeOf(X509_get0_notAfter(certificate));
  if (ends <= now) return absl::StrCat("ended at ", CertificateTimeText(ends));
  if (begins > now) return absl::StrCat("begins at ", CertificateTimeText(begins));
  return "";
}

constexpr char kTimeRemedy[] = ": renew it, or look at this machine's clock";

// Returns at least one certificate, in the order of the file; what stands around them is passed over.
absl::StatusOr<std::vector<Certificate>> ReadCertificates(std::string_view option, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadPem(option, path));
  const auto bio = TextOf(text);
  std::vector<Certificate> certificates;
  while (Certificate one{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) {
    certificates.push_back(std::move(one));
  }
  const unsigned long error = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's type
  const bool at_end = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
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
    return Problem(kTlsKeyOption, path,
                   absl::StrCat("every user of this machine has access to it (mode ",
                                absl::StrFormat("%04o", info.st_mode & 07777u),
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

// Tells whether it has what clients compare with the host that they mean. The subject's common name, long obsolete,
// counts with some of them only.
bool NamesHosts(const X509* certificate) { return X509_get_ext_by_NID(certificate, NID_subject_alt_name, -1) >= 0; }

// Tells whether the TLS libraries of all clients check signatures of such a key, BoringSSL, which is Python's, too.
bool IsForServers(const EVP_PKEY* key) {
  if (EVP_PKEY_get_base_id(key) == EVP_PKEY_RSA) return EVP_PKEY_get_bits(key) >= kRsaBitsMin;
  char group[64] = "";
  if (EVP_PKEY_get_base_id(key) != EVP_PKEY_EC || EVP_PKEY_get_group_name(key, group, sizeof(group), nullptr) != 1) {
    return false;
  }
  return std::string_view(group) == SN_X9_62_prime256v1 || std::string_view(group) == SN_secp384r1;
}

// Gives OpenSSL what gRPC will give it: its policy may take no key of that size, no signature of that kind.
absl::Status CheckPolicy(const TlsFiles& files, const std::vector<Certificate>& chain, EVP_PKEY* key) {
  const std::unique_ptr<SSL_CTX, Freed> context(SSL_CTX_new(TLS_method()));
  CHECK(context != nullptr);
  bool taken = SSL_CTX_use_certificate(context.get(), chain.front().get()) == 1;
  for (size_t i = 1; taken && i < chain.size(); ++i) {
    taken = SSL_CTX_add1_chain_cert(context.get(), chain[i].get()) == 1;
  }
  taken = taken && SSL_CTX_use_PrivateKey(context.get(), key) == 1;
  const char* const reason = taken ? nullptr : ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  if (taken) return absl::OkStatus();
  return Problem(kTlsCertOption, files.cert,
                 absl::StrCat("OpenSSL does not take it: ", reason == nullptr ? "no reason given" : reason,
                              "; have one made as is usual today"));
}

absl::Status CheckForServers(const TlsFiles& files, const X509* own, const EVP_PKEY* key) {
  if (!NamesHosts(own)) {
    return Problem(kTlsCertOption, files.cert,
                   "it has no subject alternative names, by which clients know a host: have one made that names the "
                   "server's hosts, or IPs, there");
  }
  if (IsForServers(key)) return absl::OkStatus();
  return Problem(kTlsKeyOption, files.key,
                 absl::StrCat("not every client checks signatures of its kind: have one made of RSA with ", kRsaBitsMin,
                              " bits or more, or of P-256 or P-384"));
}

absl::StatusOr<TlsValidity> CheckOwnCertificate(const TlsFiles& files, TlsSide side, absl::Time now) {
  if (files.key.empty()) return Problem(kTlsKeyOption, "", absl::StrCat("is missing: ", kTlsCertOption, " needs it"));
  if (files.cert.empty()) return Problem(kTlsCertOption, "", absl::StrCat("is missing: ", kTlsKeyOption, " needs it"));
  ASSIGN_OR_RETURN(const std::vector<Certificate> chain, ReadCertificates(kTlsCertOption, files.cert));
  X509* const own = chain.front().get();
  if (const std::string problem = TimeProblem(own, now); !problem.empty()) {
    return Problem(kTlsCertOption, files.cert, absl::StrCat("the certificate ", problem, kTimeRemedy));
  }
  const bool is_server = side == TlsSide::kServer;
  if (X509_check_purpose(own, is_server ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT, /*ca=*/0) != 1) {
    return Problem(kTlsCertOption, files.cert,
                   absl::StrCat("by its (extended) key usage it is not for ", is_server ? "servers" : "clients",
                                ": have one made for that"));
  }
  ASSIGN_OR_RETURN(const Key key, ReadKey(files.key));
  const bool match = X509_check_private_key(own, key.get()) == 1;
  ERR_clear_error();
  if (!match) {
    return Problem(kTlsKeyOption, files.key,
                   absl::StrCat("it is not the key of the first certificate in ", files.cert));
  }
  if (is_server) RETURN_IF_ERROR(CheckForServers(files, own, key.get()));
  RETURN_IF_ERROR(CheckPolicy(files, chain, key.get()));
  return ValidityOf(own);
}

// Returns the validity of the CA that ends last: a bundle may hold some that have ended beside those that count.
absl::StatusOr<TlsValidity> CheckCa(const std::string& path, absl::Time now) {
  ASSIGN_OR_RETURN(const std::vector<Certificate> bundle, ReadCertificates(kTlsCaOption, path));
  TlsValidity last = {absl::InfinitePast(), absl::ZeroDuration()};
  std::string problem;
  for (const Certificate& one : bundle) {
    const std::string of_one = TimeProblem(one.get(), now);
    if (of_one.empty() && ValidityOf(one.get()).ends > last.ends) last = ValidityOf(one.get());
    if (!of_one.empty()) problem = of_one;
  }
  if (last.ends > now) return last;
  return Problem(kTlsCaOption, path,
                 absl::StrCat("no certificate in it is valid; the last one ", problem, kTimeRemedy));
}

}  // namespace

std::string CertificateTimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

absl::Status CheckPeerCertificate(const std::string& pem, absl::Time now) {
  const Certificate certificate(PEM_read_bio_X509(TextOf(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  const std::string problem = certificate == nullptr ? "cannot be read" : TimeProblem(certificate.get(), now);
  if (problem.empty()) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat("its certificate ", problem));
}

absl::StatusOr<TlsValidities> CheckTlsFiles(const TlsFiles& files, TlsSide side, absl::Time now) {
  const bool has_own = !files.cert.empty() || !files.key.empty();
  TlsValidities validities;
  if (has_own) {
    ASSIGN_OR_RETURN(validities.cert, CheckOwnCertificate(files, side, now));
  }
  if (!files.ca.empty()) {
    ASSIGN_OR_RETURN(validities.ca, CheckCa(files.ca, now));
  }
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
  return validities;
}

}  // namespace stemma
