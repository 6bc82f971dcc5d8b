#include "common/model/mesh_rules.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/mesh.h"

namespace stemma {

std::vector<std::string> TensorParallelProblems(const ModelConfig& config, int64_t tp_size) {
  std::vector<std::string> problems;
  const auto divides = [&](const char* what, int64_t number) {
    if (number % tp_size == 0) return;
    problems.push_back(absl::StrCat("tp: ", tp_size, " ranks cannot share the model's ", number, " ", what,
                                    " evenly; choose a divisor of ", number));
  };
  divides("attention heads", config.num_heads);
  divides("FFN columns", config.ffn_size);
  if (config.num_kv_heads % tp_size != 0 && tp_size % config.num_kv_heads != 0) {
    problems.push_back(absl::StrCat("tp: the model's ", config.num_kv_heads, " K/V heads and ", tp_size,
                                    " ranks do not divide one another; choose a divisor of ", config.num_kv_heads,
                                    ", or a multiple"));
  }
  if (config.vocab_size < tp_size) {
    problems.push_back(
        absl::StrCat("tp: ", tp_size, " ranks are more than the model's ", config.vocab_size, " tokens"));
  }
  // Rows of zeros pad what does not divide, and have no norm then.
  if (tp_size > 1 && config.rms_norm_eps == 0) {
    problems.emplace_back("tp: rms_norm_eps is 0, and several ranks need one above 0; 1e-6 is usual in config.json");
  }
  return problems;
}

v1::Mesh NearestMesh(const ModelConfig& config, const v1::Mesh& mesh) {
  const int64_t asked = TpSize(mesh), most = std::min(int64_t{DpSize(mesh)} * CpSize(mesh) * asked, int64_t{kRanksMax});
  const auto rank_of = [&](int64_t tp) {
    return std::tuple(-(most / tp) * tp, std::abs(tp - asked), tp);  // the smallest is best
  };
  int64_t best = 1;
  for (int64_t tp = 2; tp <= most; ++tp) {
    if (rank_of(tp) < rank_of(best) && TensorParallelProblems(config, tp).empty()) best = tp;
  }
  const int64_t data_ranks = most / best, cp = std::gcd(data_ranks, int64_t{CpSize(mesh)});
  return MakeMesh({.dp = static_cast<uint32_t>(data_ranks / cp),
                   .cp = static_cast<uint32_t>(cp),
                   .tp = static_cast<uint32_t>(best)});
}

absl::Status CheckMesh(const ModelConfig& config, const v1::Mesh& mesh) {
  std::vector<std::string> problems = TensorParallelProblems(config, TpSize(mesh));
  // Each axis is at most kRanksMax, so the product does not overflow.
  const int64_t ranks = int64_t{DpSize(mesh)} * CpSize(mesh) * TpSize(mesh);
  if (ranks > kRanksMax) {
    problems.push_back(absl::StrCat("a mesh of ", MeshText(mesh), " has ", ranks, " ranks, more than ", kRanksMax));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("mesh ", MeshText(mesh), ": ", absl::StrJoin(problems, "; "),
                   ". The nearest mesh that can hold this model: ", MeshText(NearestMesh(config, mesh))));
}

}  // namespace stemma
