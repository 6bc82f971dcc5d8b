#include "common/base/dtype_names.h"

namespace stemma {
namespace {

struct Names {
  std::string_view short_name, long_name;
};
constexpr Names kNames[] = {{"fp32", "float32"}, {"fp64", "float64"}, {"bf16", "bfloat16"}, {"fp16", "float16"}};

}  // namespace

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
