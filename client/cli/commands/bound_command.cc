// stemma bound FILE: what reuse would save, from lengths alone; no server is asked.
#include <iostream>
#include <memory>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/commands/model_shape.h"
#include "client/cli/trace/reuse_bound.h"
#include "common/base/human.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

struct BoundOptions {
  OutputOptions output;
  std::string file;
  std::string model;
};

Record Row(const std::string& what, const std::string& dense, const std::string& reuse, const Record& ratio) {
  return {{"what", what},
          {"dense", dense},
          {"reuse", reuse},
          {"ratio", ratio.is_null() ? Record() : Record(HumanRatio(ratio.get<double>()))}};
}

void PrintBound(const BoundOptions& options, const ReuseBound& bound) {
  const Record record = bound.ToRecord(options.model);
  if (options.output.format == OutputFormat::kJson) return WriteFields(options.output, record, std::cout);
  std::cout << bound.groups() << " groups, " << bound.rollouts() << " rollouts (" << bound.rollouts_run()
            << " with a response)\n\n";
  std::vector<Record> rows = {Row("tokens", HumanCount(static_cast<double>(bound.tokens_dense())),
                                  HumanCount(static_cast<double>(bound.tokens_reuse())), record["token_ratio"])};
  if (!options.model.empty()) {
    rows.push_back(Row("FLOPs of " + options.model, HumanFlops(bound.flops_dense()), HumanFlops(bound.flops_reuse()),
                       record["flops_ratio"]));
  }
  const std::vector<Column> columns = {
      {"what", "", 6, true}, {"dense", "in full", 7}, {"reuse", "with reuse", 10}, {"ratio", "saves at most", 8}};
  WriteRecords(options.output, columns, rows, std::cout);
}

absl::Status RunBound(const BoundOptions& options) {
  std::optional<ModelConfig> model;
  if (!options.model.empty()) {
    ASSIGN_OR_RETURN(model, ReadModelShape(options.model));
  }
  ASSIGN_OR_RETURN(const std::vector<LengthGroup> groups, ReadLengths(options.file));
  ReuseBound bound(std::move(model));
  for (const LengthGroup& group : groups) bound.Add(group);
  PrintBound(options, bound);
  return absl::OkStatus();
}

}  // namespace

void AddBoundCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<BoundOptions>();
  CLI::App* command =
      app.add_subcommand("bound", "Say from lengths alone what computing each prompt once would save; needs no server");
  command->add_option("FILE", options->file, "Trace, or rollouts.jsonl: {\"group\", \"prompt\", \"response\"} a line")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--model", options->model, "Count FLOPs too: a size (qwen3-8b), a model directory, or config.json")
      ->type_name("MODEL");
  AddOutputOption(command, &options->output);
  SetExamples(
      command,
      "  stemma bound trace.jsonl --model qwen3-8b\n"
      "  stemma bound rollouts.jsonl -o json   # lines: {\"group\": 7, \"prompt\": 512, \"responses\": [90, 128]}");
  command->callback([&run, options] { run = [options] { return RunBound(*options); }; });
}

}  // namespace stemma::cli
