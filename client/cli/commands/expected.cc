#include "client/cli/commands/expected.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/json.h"
#include "common/base/json_fields.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

constexpr char kSchema[] = "stemma.expected.v1";
constexpr int64_t kIndexMax = int64_t{1} << 53;

absl::StatusOr<Tolerance> ParseTolerance(const JsonFields& header, const std::string& name) {
  Tolerance tolerance;
  if (header.Find(name) == nullptr) return tolerance;
  ASSIGN_OR_RETURN(const JsonFields fields, header.Object(name));
  ASSIGN_OR_RETURN(tolerance.absolute, fields.NumberOr("absolute", 0));
  ASSIGN_OR_RETURN(tolerance.relative, fields.NumberOr("relative", 0));
  if (tolerance.absolute < 0 || tolerance.relative < 0) return header.Error(name, "a tolerance is negative");
  return tolerance;
}

absl::Status AtLine(int64_t line, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", status.message()));
}

absl::Status NoHeader() {
  return absl::InvalidArgumentError(
      absl::StrCat("is no header: put {\"schema\": \"", kSchema,
                   "\", \"loss\": {\"relative\": 1e-5}, \"grad_norm\": {\"relative\": 1e-4}} before the lines that "
                   "`stemma replay -o json` prints"));
}

std::string Difference(const std::string& name, double value, double expected, const Tolerance& tolerance) {
  const double limit = tolerance.absolute + tolerance.relative * std::abs(expected);
  if (std::abs(value - expected) <= limit) return "";  // false for NaN
  return absl::StrFormat(" %s is %.9g, expected %.9g within %.3g;", name, value, expected, limit);
}

}  // namespace

absl::StatusOr<ExpectedSteps> ExpectedSteps::Parse(std::string_view text) {
  ExpectedSteps expected;
  int64_t line_number = 0;
  for (const auto& part : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    const std::string_view line(part.data(), part.size());
    ++line_number;
    if (line.empty()) continue;
    const auto json = ParseJson(line);
    if (!json.ok()) return AtLine(line_number, line_number == 1 ? NoHeader() : json.status());
    const JsonFields fields(*json, "");
    const absl::Status status = line_number == 1 ? expected.ReadHeader(fields) : expected.ReadStep(fields);
    if (!status.ok()) return AtLine(line_number, status);
  }
  if (expected.steps_.empty()) return absl::InvalidArgumentError("holds no step");
  return expected;
}

absl::Status ExpectedSteps::ReadHeader(const JsonFields& fields) {
  if (fields.Find("schema") == nullptr) return NoHeader();
  ASSIGN_OR_RETURN(const std::string schema, fields.String("schema"));
  if (schema != kSchema) return fields.Error("schema", absl::StrCat("is \"", schema, "\", expected ", kSchema));
  ASSIGN_OR_RETURN(loss_, ParseTolerance(fields, "loss"));
  ASSIGN_OR_RETURN(grad_norm_, ParseTolerance(fields, "grad_norm"));
  return absl::OkStatus();
}

absl::Status ExpectedSteps::ReadStep(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const int64_t line, fields.Int("line", 1, kIndexMax));
  ASSIGN_OR_RETURN(const int64_t k, fields.IntOr("k", 0, 0, kIndexMax));
  Step step;
  ASSIGN_OR_RETURN(step.loss, fields.Number("loss"));
  ASSIGN_OR_RETURN(step.grad_norm, fields.Number("grad_norm"));
  if (!steps_.emplace(std::pair(line, k), step).second) return fields.Error("line", "is there twice");
  return absl::OkStatus();
}

std::string ExpectedSteps::Compare(int64_t line, int64_t k, double loss, double grad_norm) const {
  const auto found = steps_.find({line, k});
  if (found == steps_.end()) return absl::StrCat("line ", line, " step ", k, ": nothing is expected there");
  const std::string differences = Difference("loss", loss, found->second.loss, loss_) +
                                  Difference("grad_norm", grad_norm, found->second.grad_norm, grad_norm_);
  return differences.empty() ? "" : absl::StrCat("line ", line, " step ", k, ":", differences);
}

std::vector<std::string> ExpectedSteps::Missing(int64_t line, int64_t count) const {
  std::vector<std::string> missing;
  for (auto at = steps_.lower_bound({line, count}); at != steps_.end() && at->first.first == line; ++at) {
    missing.push_back(absl::StrCat("line ", line, " step ", at->first.second, ": did not come"));
  }
  return missing;
}

}  // namespace stemma::cli
