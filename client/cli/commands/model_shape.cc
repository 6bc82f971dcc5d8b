#include "client/cli/commands/model_shape.h"

#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/output/command_status.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/nearest.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace stemma::cli {
namespace {

constexpr uint64_t kConfigBytesMax = 1 << 20;

constexpr char kSizes[] =
#include "client/cli/commands/model_sizes.inc"
    ;

const nlohmann::json& Sizes() {
  static const nlohmann::json sizes = [] {
    const absl::StatusOr<nlohmann::json> parsed = ParseJson(kSizes);
    CHECK(parsed.ok()) << parsed.status();
    return *parsed;
  }();
  return sizes;
}

absl::StatusOr<ModelConfig> ReadConfig(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string resolved, ResolvePath(path.string()));
  ASSIGN_OR_RETURN(const std::string json, ReadFile(resolved, kConfigBytesMax));
  absl::StatusOr<ModelConfig> config = ParseModelConfig(json);
  if (config.ok()) return config;
  return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", config.status().message()));
}

absl::StatusOr<ModelConfig> NamedShape(const std::string& text) {
  const std::string name = absl::AsciiStrToLower(text.substr(text.rfind('/') + 1));
  if (const auto found = Sizes().find(name); found != Sizes().end()) return ParseModelConfig(found->dump());
  const std::string nearest = Nearest(name, ModelSizes());
  return absl::NotFoundError(absl::StrCat("model \"", text,
                                          "\" is neither a file or directory here nor a size that is known",
                                          nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)"),
                                          "; sizes: ", absl::StrJoin(ModelSizes(), ", ")));
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelShape(const std::string& text) {
  std::error_code error;
  const std::filesystem::path path = text;
  const bool directory = std::filesystem::is_directory(path, error);
  const bool exists = std::filesystem::exists(path, error);
  absl::StatusOr<ModelConfig> config = exists ? ReadConfig(directory ? path / "config.json" : path) : NamedShape(text);
  if (!config.ok()) return UsageError(std::string(config.status().message()));
  return config;
}

std::vector<std::string> ModelSizes() {
  std::vector<std::string> names;
  for (const auto& [name, config] : Sizes().items()) names.push_back(name);
  return names;
}

}  // namespace stemma::cli
