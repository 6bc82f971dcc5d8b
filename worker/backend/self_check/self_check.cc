#include "worker/backend/self_check/self_check.h"

#include <c10/util/Exception.h>
#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "worker/backend/self_check/cases.h"

namespace stemma::worker {
namespace {

using self_check::Case;
using self_check::Difference;
using self_check::Operands;
using self_check::OperandsOptions;
using self_check::Side;
using self_check::Tolerances;

constexpr uint64_t kSeed = 20261125;
constexpr size_t kMessageBytesMax = 300;
constexpr char kAttention[] = "attention";

// Work on elements is fp32 inside: a bf16 result is rounded once, by at most 2^-8 of itself, and a quarter more is left
// for what fp32 differs by. Sums of some thousand fp32 terms err by some of their 2^-24. rows: made of fp32 logits.
Tolerances ElementTolerances(at::ScalarType dtype) {
  return {.run = dtype == at::kBFloat16 ? 1.25 / 256 : 2e-5, .acc = 2e-5, .rows = 1e-5, .whole = 0};
}

// Sums stay in fp32; a library that cuts them into parts may round each part's to bf16 before the last rounding.
Tolerances ProductTolerances(at::ScalarType dtype) {
  return {.run = dtype == at::kBFloat16 ? 1.0 / 128 : 2e-5, .acc = 2e-5, .rows = 0, .whole = 0};
}

// Sums are fp64 throughout: only their order and the last digits of exp differ.
Tolerances Fp64Tolerances(at::ScalarType) { return {.run = 0, .acc = 0, .rows = 1e-10, .whole = 0}; }

Tolerances ExactTolerances(at::ScalarType) { return {}; }

// Flash kernels round probabilities, their gradients and the output that gradients are made with to bf16: some 0.6 % as
// a whole, where 2 % is taken; mistakes in a merge are of 12 % and more. An element of a row with few keys, among rows
// with many, errs by 7 % of the typical size. rows: the log-sum-exp, which is fp32.
Tolerances AttentionTolerances(at::ScalarType dtype) {
  const double run = dtype == at::kBFloat16 ? 1.0 / 4 : 2e-4, whole = dtype == at::kBFloat16 ? 2e-2 : 2e-5;
  return {.run = run, .acc = run, .rows = 1e-3, .whole = whole};
}

template <auto kEntry>
void TakeKernel(const Reference& reference, Backend& backend) {
  backend.kernels.*kEntry = reference.kernels.*kEntry;
}

void TakeAttention(const Reference& reference, Backend& backend) { backend.attention = reference.attention; }

struct Entry {
  const char* name;
  // Entries of one group are replaced together: what one saves the other reads.
  const char* group;
  void (*take)(const Reference& reference, Backend& backend);
  std::vector<Case> (*cases)(const CheckShape& shape);
  Tolerances (*tolerances)(at::ScalarType dtype);
};

constexpr Entry kEntries[] = {
    {"rms_norm_forward", "rms_norm", TakeKernel<&Kernels::rms_norm_forward>, self_check::RmsNormForwardCases,
     ElementTolerances},
    {"rms_norm_backward", "rms_norm", TakeKernel<&Kernels::rms_norm_backward>, self_check::RmsNormBackwardCases,
     ElementTolerances},
    {"swiglu_forward", "swiglu_forward", TakeKernel<&Kernels::swiglu_forward>, self_check::SwigluForwardCases,
     ElementTolerances},
    {"swiglu_backward", "swiglu_backward", TakeKernel<&Kernels::swiglu_backward>, self_check::SwigluBackwardCases,
     ElementTolerances},
    {"qkv_forward", "qkv", TakeKernel<&Kernels::qkv_forward>, self_check::QkvForwardCases, ElementTolerances},
    {"qkv_backward", "qkv", TakeKernel<&Kernels::qkv_backward>, self_check::QkvBackwardCases, ElementTolerances},
    {"embedding_backward", "embedding_backward", TakeKernel<&Kernels::embedding_backward>,
     self_check::EmbeddingBackwardCases, ElementTolerances},
    {"head_forward", "head", TakeKernel<&Kernels::head_forward>, self_check::HeadForwardCases, ElementTolerances},
    {"head_backward", "head", TakeKernel<&Kernels::head_backward>, self_check::HeadBackwardCases, ElementTolerances},
    {"loss", "loss", TakeKernel<&Kernels::loss>, self_check::LossCases, Fp64Tolerances},
    {"add_weight_gradient", "add_weight_gradient", TakeKernel<&Kernels::add_weight_gradient>,
     self_check::AddWeightGradientCases, ProductTolerances},
    {"logits", "logits", TakeKernel<&Kernels::logits>, self_check::LogitsCases, ProductTolerances},
    {"logits_backward", "logits_backward", TakeKernel<&Kernels::logits_backward>, self_check::LogitsBackwardCases,
     ProductTolerances},
    {"vector_norm", "vector_norm", TakeKernel<&Kernels::vector_norm>, self_check::VectorNormCases, Fp64Tolerances},
    {"first_nonfinite", "first_nonfinite", TakeKernel<&Kernels::first_nonfinite>, self_check::FirstNonfiniteCases,
     ExactTolerances},
    {"word_sum", "word_sum", TakeKernel<&Kernels::word_sum>, self_check::WordSumCases, ExactTolerances},
    {kAttention, kAttention, TakeAttention, self_check::AttentionCases, AttentionTolerances}};
// An entry that the table gains is checked, too.
static_assert(sizeof(Kernels) == (std::size(kEntries) - 1) * sizeof(Kernels::loss));

std::string FirstLine(const std::string& text) { return text.substr(0, std::min(text.find('\n'), kMessageBytesMax)); }

struct Sides {
  Side candidate, reference;
};

// What one case found, and whether the candidate threw.
struct CaseResult {
  Difference difference;
  bool threw = false;
};

// Runs one case on both sides. Nothing of an earlier case is left in the device's queue when this returns.
CaseResult RunCase(const Case& one, const Sides& sides, const OperandsOptions& options, const Tolerances& tolerances) {
  OperandsOptions of_reference = options;
  of_reference.is_reference = true;
  Operands expected(of_reference), actual(options);
  one.run(sides.reference, expected);
  expected.Fetch();
  try {
    one.run(sides.candidate, actual);
    actual.Fetch();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    const std::string reason = absl::StrCat("fails: ", FirstLine(error.what_without_backtrace()));
    return {.difference = {.error = 0, .tolerance = 0, .reason = reason}, .threw = true};
  }
  return {.difference = actual.CompareWith(expected, tolerances), .threw = false};
}

CheckResult RunEntry(const Entry& entry, const Sides& sides, at::Device device, const CheckSetting& setting) {
  const double begin_s = RealClock().MonotonicSeconds();
  const Tolerances tolerances = entry.tolerances(setting.dtype);
  Difference worst;
  bool threw = false;
  OperandsOptions options{.device = device, .run_dtype = setting.dtype, .seed = kSeed};
  for (const Case& one : entry.cases(setting.shape)) {
    ++options.seed;
    if (one.is_large && !setting.large_cases) continue;
    auto [difference, case_threw] = RunCase(one, sides, options, tolerances);
    threw = threw || case_threw;
    if (!difference.reason.empty()) difference.reason = absl::StrCat(one.name, ": ", difference.reason);
    if (difference.IsWorseThan(worst)) worst = std::move(difference);
  }
  return {.kernel = entry.name,
          .admitted = worst.reason.empty(),
          .worst_error = worst.error,
          .tolerance = worst.tolerance,
          .reason = worst.reason,
          .threw = threw,
          .seconds = RealClock().MonotonicSeconds() - begin_s};
}

Sides SidesOf(const Backend& backend, const AttentionOp& attention, const Reference& reference) {
  return {.candidate = {.kernels = backend.kernels,
                        .attention = attention,
                        .queries_by_token = backend.queries_by_token,
                        .dlogits_in_run_dtype = backend.dlogits_in_run_dtype,
                        .logits_row_quantum = backend.logits_row_quantum},
          .reference = {.kernels = reference.kernels,
                        .attention = *reference.attention,
                        .queries_by_token = backend.queries_by_token,
                        .dlogits_in_run_dtype = backend.dlogits_in_run_dtype}};
}

const Entry& EntryOf(std::string_view kernel) {
  const auto* it =
      std::find_if(std::begin(kEntries), std::end(kEntries), [&](const Entry& entry) { return entry.name == kernel; });
  CHECK(it != std::end(kEntries)) << kernel << " is no kernel";
  return *it;
}

}  // namespace

std::vector<CheckResult> CheckBackend(const Backend& candidate, const Reference& reference,
                                      const CheckSetting& setting) {
  const Sides sides = SidesOf(candidate, *candidate.attention, reference);
  std::vector<CheckResult> results;
  for (const Entry& entry : kEntries) results.push_back(RunEntry(entry, sides, candidate.device, setting));
  for (const AttentionStrategy& faster : candidate.faster_attention) {
    results.push_back(CheckAttention(faster.name, *faster.op, candidate, reference, setting));
  }
  return results;
}

CheckResult CheckAttention(const std::string& name, const AttentionOp& candidate, const Backend& backend,
                           const Reference& reference, const CheckSetting& setting) {
  CheckResult result = RunEntry(EntryOf(kAttention), SidesOf(backend, candidate, reference), backend.device, setting);
  result.kernel = name;
  return result;
}

namespace {

// Takes the best of the faster attentions that was admitted. results: theirs, in their order. What is in use for it may
// call the backend's own attention, which then must be `own_admitted`.
void AdmitFasterAttention(std::span<const CheckResult> results, bool own_admitted, Backend& backend) {
  CHECK_EQ(results.size(), backend.faster_attention.size());
  bool found = false;
  for (size_t i = 0; i < results.size(); ++i) {
    CHECK_EQ(results[i].kernel, backend.faster_attention[i].name);
    if (!results[i].admitted) backend.kernels_off.push_back({results[i].kernel, results[i].reason});
    if (results[i].admitted && !std::exchange(found, true)) {
      const AttentionStrategy& faster = backend.faster_attention[i];
      backend.attention = own_admitted && faster.in_use != nullptr ? faster.in_use : faster.op;
    }
  }
  backend.faster_attention.clear();
}

}  // namespace

Backend Admit(Backend candidate, const Reference& reference, const std::vector<CheckResult>& all_results) {
  CHECK_GE(all_results.size(), std::size(kEntries));
  const std::span<const CheckResult> results = std::span(all_results).first(std::size(kEntries));
  std::map<std::string_view, const CheckResult*> refused_groups;  // by its first refusal
  for (const CheckResult& result : results) {
    if (!result.admitted) refused_groups.emplace(EntryOf(result.kernel).group, &result);
  }
  for (const CheckResult& result : results) {
    const Entry& entry = EntryOf(result.kernel);
    const auto refused = refused_groups.find(entry.group);
    if (refused == refused_groups.end()) continue;
    entry.take(reference, candidate);
    candidate.kernels_off.push_back(
        {result.kernel,
         result.admitted ? absl::StrCat("belongs together with ", refused->second->kernel) : result.reason});
  }
  const bool own_attention = !refused_groups.contains(EntryOf(kAttention).group);
  AdmitFasterAttention(std::span(all_results).subspan(std::size(kEntries)), own_attention, candidate);
  return candidate;
}

std::vector<std::string> CheckedKernels() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

}  // namespace stemma::worker
