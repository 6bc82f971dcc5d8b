#include "common/base/dtype_names.h"

#include "glog/logging.h"

namespace stemma {
namespace {

struct Names {
  std::string_view short_name, long_name;
};
constexpr Names kNames[] = {{"fp32", "float32"}, {"fp64", "float64"}, {"bf16", "bfloat16"}, {"fp16", "float16"}};

}  // namespace

std::optional<RunDtype> FindRunDtype(std::string_view name) {
  const std::string short_name = ShortDtypeName(name);
  if (short_name == "fp32") return RunDtype::kFp32;
  if (short_name == "fp64") return RunDtype::kFp64;
  if (short_name == "bf16") return RunDtype::kBf16;
  return std::nullopt;
}

RunDtype RunDtypeOf(std::string_view name) {
  if (name.empty()) return RunDtype::kFp32;
  const std::optional<RunDtype> dtype = FindRunDtype(name);
  CHECK(dtype.has_value()) << name << " is no dtype of a run";
  return *dtype;
}

std::string ShortDtypeName(std::string_view name) {
  for (const Names& names : kNames) {
    if (name == names.long_name) return std::string(names.short_name);
  }
  return std::string(name);
}

std::string LongDtypeName(std::string_view name) {
  for (const Names& names : kNames) {
    if (name == names.short_name) return std::string(names.long_name);
  }
  return std::string(name);
}

}  // namespace stemma
