// checkpoint_probe MODEL DATA DTYPE RANKS: makes two steps, saves into DATA/checkpoints/c, and writes what the engine
// held into DATA/held.safetensors, by other code: "master NAME", "exp_avg NAME" and "exp_avg_sq NAME" of each tensor.
#include <iostream>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "common/model/safetensors.h"
#include "tests/worker/checkpoint/training_run.h"

namespace stemma::testing {
namespace {

void WriteHeld(const InProcess& run, int ranks, const std::string& path) {
  const StateTensors state = WholeState(run, ranks);
  const bool fp64 = run.weights().accumulate_dtype == at::kDouble;
  std::vector<safetensors::TensorEntry> entries;
  std::string data;
  for (const HfTensor& tensor : run.weights().hf_tensors) {
    for (const std::string kind : {"master", "exp_avg", "exp_avg_sq"}) {
      const at::Tensor rows = state.at(run.weights().at(tensor.parameter).name + " " + kind)
                                  .slice(0, tensor.row_begin, tensor.row_end)
                                  .contiguous();
      entries.push_back(
          {kind + " " + tensor.name, fp64 ? safetensors::Dtype::kF64 : safetensors::Dtype::kF32, rows.sizes().vec()});
      data.append(static_cast<const char*>(rows.data_ptr()), rows.nbytes());
    }
  }
  const std::string header = safetensors::MakeHeader(entries, {});
  EXPECT_THAT(WriteFile(path, header + data), IsOk());
}

bool Run(const std::vector<std::string>& arguments) {
  const RunSettings settings = {
      .model = arguments[0], .data = arguments[1], .dtype = arguments[2], .ranks = std::stoi(arguments[3])};
  const auto run = MakeRun(settings);
  if (run == nullptr) return false;
  MakeStep(*run, 0);
  MakeStep(*run, 1);
  RanksSave(*run, settings.ranks, settings.data, "c").WaitForWhole();
  WriteHeld(*run, settings.ranks, settings.data + "/held.safetensors");
  return !::testing::Test::HasFailure();
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 5) {
    std::cerr << "checkpoint_probe MODEL DATA DTYPE RANKS\n";
    return 2;
  }
  return stemma::testing::Run({argv + 1, argv + argc}) ? 0 : 1;
}
