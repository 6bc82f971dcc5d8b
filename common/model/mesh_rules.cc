#include "common/model/mesh_rules.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/mesh.h"

namespace stemma {
namespace {

// Each axis is at most kRanksMax, so the product does not overflow.
int64_t RanksAsked(const v1::Mesh& mesh) { return int64_t{DpSize(mesh)} * PpSize(mesh) * CpSize(mesh) * TpSize(mesh); }

// Returns every reason why the tensor-parallel ranks cannot be so many sets with experts of their own, of whose columns
// each rank of a set has as many.
std::vector<std::string> ExpertProblems(const ModelConfig& config, int64_t tp_size, int64_t ep_size) {
  if (ep_size == 1) return {};
  std::vector<std::string> problems;
  if (tp_size % ep_size != 0) {
    problems.push_back(absl::StrCat("ep: ", ep_size, " does not divide tp, ", tp_size,
                                    ", whose ranks the experts are dealt to; choose a divisor of tp"));
  } else if (const int64_t ranks = tp_size / ep_size; config.ffn_size % ranks != 0) {
    problems.push_back(absl::StrCat("ep: the ", ranks, " ranks of each of ", ep_size, " sets cannot share an expert's ",
                                    config.ffn_size, " FFN columns evenly; choose tp / ep a divisor of ",
                                    config.ffn_size));
  }
  if (!config.experts) {
    problems.push_back(absl::StrCat("ep: ", ep_size, ", but the model has no experts; leave ep out"));
  } else if (config.experts->count % ep_size != 0) {
    problems.push_back(absl::StrCat("ep: the model's ", config.experts->count, " experts cannot be dealt to ", ep_size,
                                    " sets of ranks evenly; choose a divisor of ", config.experts->count));
  }
  return problems;
}

// Returns the largest size of ep, at most `most`, with which so many tensor-parallel ranks can be; 0: there is none.
int64_t LargestEp(const ModelConfig& config, int64_t tp_size, int64_t most) {
  for (int64_t ep = config.experts ? std::min(most, tp_size) : 1; ep >= 1; --ep) {
    if (tp_size % ep == 0 && TensorParallelProblems(config, tp_size, ep).empty()) return ep;
  }
  return 0;
}

}  // namespace

std::vector<std::string> TensorParallelProblems(const ModelConfig& config, int64_t tp_size, int64_t ep_size) {
  std::vector<std::string> problems = ExpertProblems(config, tp_size, ep_size);
  const auto divides = [&](const char* what, int64_t number) {
    if (number % tp_size == 0) return;
    problems.push_back(absl::StrCat("tp: ", tp_size, " ranks cannot share the model's ", number, " ", what,
                                    " evenly; choose a divisor of ", number));
  };
  divides("attention heads", config.num_heads);
  if (ep_size == 1) divides("FFN columns", config.ffn_size);
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

std::vector<std::string> PipelineProblems(const ModelConfig& config, int64_t pp_size) {
  if (pp_size <= config.num_layers) return {};
  return {absl::StrCat("pp: ", pp_size, " stages are more than the model's ", config.num_layers,
                       " layers; choose at most ", config.num_layers)};
}

v1::Mesh NearestMesh(const ModelConfig& config, const v1::Mesh& mesh) {
  const int64_t asked = TpSize(mesh), most = std::min(RanksAsked(mesh), int64_t{kRanksMax});
  std::vector<int64_t> tp_sizes = {1};
  for (int64_t tp = 2; tp <= most; ++tp) {
    if (LargestEp(config, tp, EpSize(mesh)) > 0) tp_sizes.push_back(tp);
  }
  const auto rank_of = [&](int64_t pp, int64_t tp) {
    return std::tuple(-(most / (pp * tp)) * pp * tp, std::abs(tp - asked), -pp, tp);  // the smallest is best
  };
  std::pair<int64_t, int64_t> best = {1, 1};
  for (int64_t pp = 1; pp <= std::min(int64_t{PpSize(mesh)}, config.num_layers); ++pp) {
    for (const int64_t tp : tp_sizes) {
      if (pp * tp <= most && rank_of(pp, tp) < rank_of(best.first, best.second)) best = {pp, tp};
    }
  }
  const auto [pp, tp] = best;
  const int64_t data_ranks = most / (pp * tp), cp = std::gcd(data_ranks, int64_t{CpSize(mesh)});
  return MakeMesh({.dp = static_cast<uint32_t>(data_ranks / cp),
                   .pp = static_cast<uint32_t>(pp),
                   .cp = static_cast<uint32_t>(cp),
                   .tp = static_cast<uint32_t>(tp),
                   .ep = static_cast<uint32_t>(LargestEp(config, tp, EpSize(mesh)))});
}

absl::Status CheckMesh(const ModelConfig& config, const v1::Mesh& mesh) {
  std::vector<std::string> problems = TensorParallelProblems(config, TpSize(mesh), EpSize(mesh));
  for (std::string& problem : PipelineProblems(config, PpSize(mesh))) problems.push_back(std::move(problem));
  const int64_t ranks = RanksAsked(mesh);
  if (ranks > kRanksMax) {
    problems.push_back(absl::StrCat("a mesh of ", MeshText(mesh), " has ", ranks, " ranks, more than ", kRanksMax));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("mesh ", MeshText(mesh), ": ", absl::StrJoin(problems, "; "),
                   ". The nearest mesh that can hold this model: ", MeshText(NearestMesh(config, mesh))));
}

}  // namespace stemma
