// Small models, and steps of them on one backend: what the tests of this folder compare.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/admission/training_request.h"
#include "common/model/model_config.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

struct SmallModel {
  const char* family;
  int64_t head_size = 64;
  int64_t vocab = 256;  // 251: no row of logits is a multiple of 16 bytes
  int64_t layers = 3;
  double weight_std = 0.06;  // three times the usual: every term of a gradient shows
};

ModelConfig ConfigOf(const SmallModel& model);

// A folder with random weights that bf16 holds exactly, so that a run in each dtype has the same ones.
class ModelFolder {
 public:
  ModelFolder(const SmallModel& model, uint64_t seed);
  ~ModelFolder();
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  const std::string& path() const { return path_; }
  const ModelConfig& config() const { return config_; }

 private:
  const ModelConfig config_;
  std::string path_;
};

// How a step is computed.
struct Way {
  std::string dtype = "fp32";
  v1::Schedule schedule = v1::REUSE;
  v1::TapePolicy prefix = v1::S0, suffix = v1::S0;
  uint32_t block_rows = 0;
  bool offload = false;
  uint64_t headroom_bytes = 0;
  uint32_t wave_suffixes = 0;
  uint32_t head_chunk_rows = 48;
  v1::OptimizerResidency residency = v1::DEVICE;

  std::string Text() const;
};

std::unique_ptr<InProcess> MakeSteps(const ModelFolder& model, const Way& way, Backend backend);

struct StepNumbers {
  std::map<std::string, at::Tensor> gradients;  // by Hugging Face's name; fp64, on the host
  std::map<std::string, std::vector<double>> log_probs;
  internal::v1::StepSums sums;
};

// One Prepare; the test fails, and the numbers are empty, where it is refused.
StepNumbers RunStep(InProcess& steps, const TrainingRequest& request);
// The same on the composed backend of the CPU in fp64, dense: plain formulas, no kernel and no split of ours.
StepNumbers TruthOf(const ModelFolder& model, const TrainingRequest& request);

// Returns |a - truth| / |truth| of each parameter in the Euclidean norm, and as "log-probs" the root mean square of the
// differences.
std::map<std::string, double> ErrorsOf(const StepNumbers& a, const StepNumbers& truth);

}  // namespace stemma::testing
