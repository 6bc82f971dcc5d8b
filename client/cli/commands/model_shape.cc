#include "client/cli/commands/model_shape.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/output/command_status.h"
#include "common/base/json.h"
#include "common/base/nearest.h"
#include "common/model/model_directory.h"
#include "glog/logging.h"

namespace stemma::cli {
namespace {

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

// "qwen3-8b", ...
std::vector<std::string> ModelSizes() {
  std::vector<std::string> names;
  for (const auto& [name, config] : Sizes().items()) names.push_back(name);
  return names;
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
  const bool exists = std::filesystem::exists(text, error);
  absl::StatusOr<ModelConfig> config = exists ? ReadModelConfig(text) : NamedShape(text);
  if (!config.ok()) return UsageError(std::string(config.status().message()));
  return config;
}

}  // namespace stemma::cli
