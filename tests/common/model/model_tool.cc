// For Python tests: writes and opens model directories with common/.
//   model_tool init CONFIG.json OUT SEED DTYPE NORM_STD MAX_SHARD_BYTES     DTYPE: F32 F64 BF16 F16
//   model_tool open DIRECTORY                                               prints the config as ModelConfigJson has it
//   model_tool headers FILE...                                              prints "ok" or the error, one line a file
// Exit: 0, or 1 with the error on stderr.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/model/model_directory.h"
#include "common/model/model_init.h"

namespace {

absl::Status Init(const std::vector<std::string>& args) {
  ASSIGN_OR_RETURN(const std::string text, stemma::ReadFile(args[1], 1 << 20));
  ASSIGN_OR_RETURN(const stemma::ModelConfig config, stemma::ParseModelConfig(text));
  stemma::ModelInitOptions options{
      .seed = std::stoull(args[3]), .norm_std = std::stod(args[5]), .max_shard_bytes = std::stoull(args[6])};
  using enum stemma::safetensors::Dtype;
  for (const auto dtype : {kF32, kF64, kBF16, kF16}) {
    if (stemma::safetensors::DtypeName(dtype) == args[4]) options.dtype = dtype;
  }
  return stemma::WriteRandomModel(config, options, args[2]);
}

absl::Status Open(const std::string& path) {
  ASSIGN_OR_RETURN(const stemma::ModelDirectory directory, stemma::OpenModelDirectory(path));
  std::cout << stemma::ModelConfigJson(directory.config);
  return absl::OkStatus();
}

absl::Status PrintHeaders(const std::vector<std::string>& args) {
  for (size_t i = 1; i < args.size(); ++i) {
    const auto header = stemma::safetensors::ReadHeader(args[i]);
    std::cout << (header.ok() ? "ok" : std::string(header.status().message())) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  absl::Status status = absl::InvalidArgumentError("usage: see tests/common/model/model_tool.cc");
  if (args.size() == 7 && args[0] == "init") status = Init(args);
  if (args.size() == 2 && args[0] == "open") status = Open(args[1]);
  if (args.size() > 1 && args[0] == "headers") status = PrintHeaders(args);
  if (!status.ok()) std::cerr << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
