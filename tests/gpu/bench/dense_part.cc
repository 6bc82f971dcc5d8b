// One dense trajectory through a stack of layers, with the head on its response and on all of it; and the head alone.
#include <ATen/ATen.h>

#include <vector>

#include "common/base/status_macros.h"
#include "tests/gpu/bench/group_rows.h"
#include "tests/gpu/bench/ideals.h"
#include "tests/gpu/bench/parts.h"
#include "tests/gpu/bench/stack.h"
#include "worker/ops/head.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

// Forward, loss gradient and backward of the head on so many rows: three products, and one more where it is recomputed.
void MeasureHead(BenchRun& run, const ModelConfig& model, int64_t rows) {
  run.Row("head", {{"rows", rows}, {"vocabulary", model.vocab_size}}, [&](json& row) {
    const Backend backend = run.MakeBackend(model);
    const at::TensorOptions bf16 = backend.options(at::kBFloat16);
    const at::Tensor hidden = at::randn({rows, model.hidden_size}, bf16);
    const at::Tensor weight = at::randn({model.vocab_size, model.hidden_size}, bf16).mul_(0.02);
    const at::Tensor dweight = at::zeros({model.vocab_size, model.hidden_size}, backend.options(at::kFloat));
    const at::Tensor targets = at::randint(model.vocab_size, {rows}, backend.options(at::kLong));
    const RowGradient gradient = [](RowRange, const at::Tensor&, const at::Tensor&, const at::Tensor& dlog_prob_T,
                                    const at::Tensor&) { dlog_prob_T.fill_(1e-4); };
    const HeadOptions options = {.chunk_rows = run.options().tiny ? 64 : 2048};
    const Spread spread = run.Time(
        backend,
        [&] {
          HeadForwardBackward(backend, {hidden, weight, targets}, options, gradient, dweight);
        },
        3);
    const double flops =
        6 * static_cast<double>(rows) * static_cast<double>(model.hidden_size) * static_cast<double>(model.vocab_size);
    row["seconds"] = spread.Json();
    row["flops"] = flops;
    row["tflops"] = flops / spread.median() / 1e12;
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status RunDense(BenchRun& run) {
  const bool tiny = run.options().tiny;
  ModelConfig model = LlamaConfig(tiny);
  const int64_t tokens = TrajectoryTokens(tiny), of = model.num_layers;
  const int64_t fit = LayersThatFit(run, model, tokens);
  model.num_layers = run.options().layers > 0 ? run.options().layers : fit;
  run.Fact("layers", model.num_layers);
  run.Fact("layers_of_the_model", of);
  ASSIGN_OR_RETURN(const std::unique_ptr<Stack> stack, Stack::Create(run, {.config = model}));
  const GroupSize split = {Splits(tiny)[0].prompt, Splits(tiny)[0].response, 1};
  MeasureDense(run, *stack, split, "head on the response");
  MeasureDense(run, *stack, {1, tokens, 1}, "head on all tokens");
  for (const int64_t rows : {split.response, tokens}) MeasureHead(run, model, rows);
  ++model.vocab_size;  // no multiple of a pack: rows of logits are padded
  MeasureHead(run, model, tokens);
  return absl::OkStatus();
}

}  // namespace stemma::testing
