#include "worker/model/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <glog/logging.h>

#include <algorithm>
#include <map>

namespace stemma::worker {
namespace {

// Builds parameters, and the map from Hugging Face names to their rows.
class Builder {
 public:
  Builder(const ModelConfig& config, at::ScalarType run_dtype) {
    weights_.config = config;
    weights_.run_dtype = run_dtype;
    weights_.accumulate_dtype = run_dtype == at::kDouble ? at::kDouble : at::kFloat;
  }

  struct Part {
    std::string hf_name;
    int64_t rows;
  };

  // One parameter whose rows are those of `parts` in order; shape [sum of rows] or [sum of rows, columns].
  int Add(const std::string& name, const std::vector<Part>& parts, int64_t columns = 0) {
    const int index = static_cast<int>(weights_.parameters.size());
    int64_t rows = 0;
    for (const Part& part : parts) {
      by_name_[part.hf_name] = {part.hf_name, index, rows, rows + part.rows};
      rows += part.rows;
    }
    std::vector<int64_t> shape = {rows};
    if (columns > 0) shape.push_back(columns);
    Parameter p;
    p.name = name;
    p.weight = at::empty(shape, at::TensorOptions().dtype(weights_.run_dtype));
    if (weights_.run_dtype == weights_.accumulate_dtype) p.master = p.weight;
    p.grad = at::zeros(shape, at::TensorOptions().dtype(weights_.accumulate_dtype));
    weights_.parameters.push_back(std::move(p));
    return index;
  }

  Weights Build() {
    const ModelConfig& c = weights_.config;
    weights_.embedding = Add("embedding", {{"model.embed_tokens.weight", c.vocab_size}}, c.hidden_size);
    for (int64_t l = 0; l < c.num_layers; ++l) AddLayer(l);
    weights_.final_norm = Add("final_norm", {{"model.norm.weight", c.hidden_size}});
    weights_.head =
        c.tie_word_embeddings ? weights_.embedding : Add("head", {{"lm_head.weight", c.vocab_size}}, c.hidden_size);
    for (const TensorSpec& spec : ModelTensors(c)) {
      const auto it = by_name_.find(spec.name);
      CHECK(it != by_name_.end()) << spec.name;
      weights_.hf_tensors.push_back(it->second);
    }
    CHECK_EQ(weights_.hf_tensors.size(), by_name_.size());
    return std::move(weights_);
  }

 private:
  void AddLayer(int64_t l) {
    const ModelConfig& c = weights_.config;
    const std::string ours = "layers." + std::to_string(l) + ".";
    const std::string hf = "model.layers." + std::to_string(l) + ".";
    const std::string attn = hf + "self_attn.";
    LayerWeights w;
    w.norm1 = Add(ours + "norm1", {{hf + "input_layernorm.weight", c.hidden_size}});
    w.qkv = Add(ours + "qkv",
                {{attn + "q_proj.weight", c.q_size()},
                 {attn + "k_proj.weight", c.kv_size()},
                 {attn + "v_proj.weight", c.kv_size()}},
                c.hidden_size);
    if (c.qkv_bias) {
      w.qkv_bias = Add(ours + "qkv_bias", {{attn + "q_proj.bias", c.q_size()},
                                           {attn + "k_proj.bias", c.kv_size()},
                                           {attn + "v_proj.bias", c.kv_size()}});
    }
    if (c.qk_norm) {
      w.q_norm = Add(ours + "q_norm", {{attn + "q_norm.weight", c.head_size}});
      w.k_norm = Add(ours + "k_norm", {{attn + "k_norm.weight", c.head_size}});
    }
    w.o = Add(ours + "o", {{attn + "o_proj.weight", c.hidden_size}}, c.q_size());
    w.norm2 = Add(ours + "norm2", {{hf + "post_attention_layernorm.weight", c.hidden_size}});
    w.gate_up =
        Add(ours + "gate_up", {{hf + "mlp.gate_proj.weight", c.ffn_size}, {hf + "mlp.up_proj.weight", c.ffn_size}},
            c.hidden_size);
    w.down = Add(ours + "down", {{hf + "mlp.down_proj.weight", c.hidden_size}}, c.ffn_size);
    weights_.layers.push_back(w);
  }

  Weights weights_;
  std::map<std::string, HfTensor> by_name_;
};

}  // namespace

const HfTensor& Weights::hf(const std::string& name) const {
  const auto it = std::find_if(hf_tensors.begin(), hf_tensors.end(), [&](const HfTensor& t) { return t.name == name; });
  CHECK(it != hf_tensors.end()) << name;
  return *it;
}

at::Tensor Weights::MasterSlice(const HfTensor& tensor) const {
  return at(tensor.parameter).master.slice(0, tensor.row_begin, tensor.row_end);
}

at::Tensor Weights::GradSlice(const HfTensor& tensor) const {
  return at(tensor.parameter).grad.slice(0, tensor.row_begin, tensor.row_end);
}

Weights MakeWeights(const ModelConfig& config, at::ScalarType run_dtype) { return Builder(config, run_dtype).Build(); }

}  // namespace stemma::worker
