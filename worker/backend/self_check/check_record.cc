#include "worker/backend/self_check/check_record.h"

#include <glog/logging.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/json_fields.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_file.h"
#include "common/base/temporary_folder.h"

namespace stemma::worker {
namespace {

constexpr uint64_t kMaxFileBytes = 1 << 20;
constexpr int64_t kVersion = 1;

std::string FolderIn(const std::string& data_directory) { return absl::StrCat(data_directory, "/self_check"); }

// Names the record: workers on devices of one kind that run one model share it.
std::string RecordName(const CheckFingerprint& fingerprint) {
  std::string name = absl::AsciiStrToLower(
      absl::StrCat(fingerprint.device_name, "-", fingerprint.dtype, "-h", fingerprint.shape.num_heads, "-kv",
                   fingerprint.shape.num_kv_heads, "-e", fingerprint.shape.head_size));
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) c = '-';
  }
  return name;
}

std::string PathIn(const std::string& data_directory, const CheckFingerprint& fingerprint) {
  return absl::StrCat(FolderIn(data_directory), "/", RecordName(fingerprint), ".json");
}

nlohmann::json JsonOf(const CheckFingerprint& fingerprint) {
  return {{"device_name", fingerprint.device_name},
          {"compute_capability", fingerprint.compute_capability},
          {"driver", fingerprint.driver},
          {"cuda_runtime", fingerprint.cuda_runtime},
          {"torch", fingerprint.torch},
          {"cublas", fingerprint.cublas},
          {"cudnn", fingerprint.cudnn},
          {"build_id", fingerprint.build_id},
          {"checks_build_id", fingerprint.checks_build_id},
          {"dtype", fingerprint.dtype},
          {"num_heads", fingerprint.shape.num_heads},
          {"num_kv_heads", fingerprint.shape.num_kv_heads},
          {"head_size", fingerprint.shape.head_size},
          {"faster_attention", fingerprint.faster_attention}};
}

// An error that is not finite is null: JSON has no such number.
nlohmann::json JsonOf(const CheckResult& result) {
  return {{"kernel", result.kernel},
          {"admitted", result.admitted},
          {"worst_error", std::isfinite(result.worst_error) ? nlohmann::json(result.worst_error) : nlohmann::json()},
          {"tolerance", result.tolerance},
          {"reason", result.reason},
          {"seconds", result.seconds}};
}

absl::StatusOr<CheckResult> ResultOf(const nlohmann::json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("results: holds what is no object");
  CheckResult result;
  const JsonFields fields(json, "results.");
  ASSIGN_OR_RETURN(result.kernel, fields.String("kernel"));
  if (fields.Find("admitted") == nullptr) return fields.Error("admitted", "is missing");
  ASSIGN_OR_RETURN(result.admitted, fields.BoolOr("admitted", false));
  ASSIGN_OR_RETURN(result.worst_error, fields.NumberOr("worst_error", std::numeric_limits<double>::infinity()));
  ASSIGN_OR_RETURN(result.tolerance, fields.Number("tolerance"));
  ASSIGN_OR_RETURN(result.reason, fields.String("reason"));
  ASSIGN_OR_RETURN(result.seconds, fields.NumberOr("seconds", 0));
  return result;
}

absl::Status CheckKernels(const std::vector<CheckResult>& results, const CheckFingerprint& fingerprint) {
  std::vector<std::string> names, expected = CheckedKernels();
  for (const CheckResult& result : results) names.push_back(result.kernel);
  expected.insert(expected.end(), fingerprint.faster_attention.begin(), fingerprint.faster_attention.end());
  return names == expected ? absl::OkStatus() : absl::FailedPreconditionError("it is of other kernels");
}

}  // namespace

std::string EncodeRecord(const CheckFingerprint& fingerprint, const std::vector<CheckResult>& results) {
  nlohmann::json json = {
      {"version", kVersion}, {"fingerprint", JsonOf(fingerprint)}, {"results", nlohmann::json::array()}};
  for (const CheckResult& result : results) json["results"].push_back(JsonOf(result));
  // A reason may hold what a library wrote: bytes that are no UTF-8 are replaced.
  return absl::StrCat(json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace), "\n");
}

absl::StatusOr<std::vector<CheckResult>> DecodeRecord(const std::string& text, const CheckFingerprint& fingerprint) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text));
  if (!json.is_object()) return absl::InvalidArgumentError("not an object");
  const JsonFields fields(json, "");
  ASSIGN_OR_RETURN(const int64_t version, fields.Int("version", 0, std::numeric_limits<int64_t>::max()));
  if (version != kVersion) return absl::FailedPreconditionError(absl::StrCat("its version is ", version));
  const nlohmann::json* made_on = fields.Find("fingerprint");
  if (made_on == nullptr || !made_on->is_object()) return fields.Error("fingerprint", "is not an object");
  if (*made_on != JsonOf(fingerprint)) return absl::FailedPreconditionError("it was made on something else");
  const nlohmann::json* list = fields.Find("results");
  if (list == nullptr || !list->is_array()) return fields.Error("results", "is not a list");
  std::vector<CheckResult> results;
  for (const nlohmann::json& item : *list) {
    ASSIGN_OR_RETURN(CheckResult result, ResultOf(item));
    results.push_back(std::move(result));
  }
  RETURN_IF_ERROR(CheckKernels(results, fingerprint));
  return results;
}

std::optional<std::vector<CheckResult>> ReadRecord(const std::string& data_directory,
                                                   const CheckFingerprint& fingerprint) {
  if (data_directory.empty()) return std::nullopt;
  const std::string path = PathIn(data_directory, fingerprint);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxFileBytes);
  absl::StatusOr<std::vector<CheckResult>> results =
      text.ok() ? DecodeRecord(*text, fingerprint) : absl::StatusOr<std::vector<CheckResult>>(text.status());
  if (results.ok()) return *std::move(results);
  if (absl::IsFailedPrecondition(results.status())) {
    LOG(INFO) << path << " is not used: " << results.status().message();
  } else {
    LOG(WARNING) << path << " is damaged, kernels are checked again: " << results.status().message();
  }
  return std::nullopt;
}

absl::Status WriteRecord(const std::string& data_directory, const CheckFingerprint& fingerprint,
                         const std::vector<CheckResult>& results) {
  const std::string folder = FolderIn(data_directory);
  if (const int error = MakeFolders(folder); error != 0) return ErrnoStatus("mkdir", folder, error);
  return ReplaceFile(PathIn(data_directory, fingerprint), EncodeRecord(fingerprint, results));
}

}  // namespace stemma::worker
