"""The families written once more from their formulas, in float64, without transformers' modules.

It exists to check hf64.py: two implementations that share no line must agree. Reads config.json and safetensors itself.
"""

import glob
import json
import math
import os

import torch
from safetensors.torch import load_file


class PlainModel:
    def __init__(self, directory):
        with open(os.path.join(directory, "config.json")) as file:
            self.config = json.load(file)
        self.weights = {}
        for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
            for name, tensor in load_file(path).items():
                self.weights[name] = tensor.to(torch.float64).requires_grad_(True)
        if self.config.get("tie_word_embeddings"):
            self.weights.pop("lm_head.weight", None)

    def _rope_angles(self, positions, head_size):
        rope = self.config.get("rope_parameters") or {**(self.config.get("rope_scaling") or {}),
                                                      "rope_theta": self.config["rope_theta"]}
        frequencies = []
        for i in range(head_size // 2):
            frequency = rope["rope_theta"] ** (-2.0 * i / head_size)
            if rope.get("rope_type", "default") == "llama3":
                old = rope["original_max_position_embeddings"]
                turns = old * frequency / (2 * math.pi)  # turns of this pair within the original context
                low, high = rope["low_freq_factor"], rope["high_freq_factor"]
                keep = min(max((turns - low) / (high - low), 0.0), 1.0)
                frequency = keep * frequency + (1 - keep) * frequency / rope["factor"]
            frequencies.append(frequency)
        return positions[:, None].double() * torch.tensor(frequencies, dtype=torch.float64)[None, :]

    def _norm(self, x, name):
        rstd = (x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]) ** -0.5
        return x * rstd * self.weights[name]

    def _linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias

    def _attention(self, x, layer):
        config, prefix = self.config, f"model.layers.{layer}.self_attn."
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        rows = x.shape[0]
        angles = self._rope_angles(torch.arange(rows), size)
        cos, sin = angles.cos(), angles.sin()

        def rotated(name, norm, count):
            y = self._linear(x, prefix + name).reshape(rows, count, size)
            if prefix + norm in self.weights:
                y = self._norm(y, prefix + norm)
            first, second = y[..., :size // 2], y[..., size // 2:]
            c, s = cos[:, None], sin[:, None]
            return torch.cat([first * c - second * s, second * c + first * s], dim=-1)

        q = rotated("q_proj", "q_norm.weight", heads)
        k = rotated("k_proj", "k_norm.weight", kv_heads)
        v = self._linear(x, prefix + "v_proj").reshape(rows, kv_heads, size)
        future = torch.ones(rows, rows).triu(1).bool()
        out = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = (q[:, head] @ k[:, group].T) / math.sqrt(size)
            out.append(torch.softmax(scores.masked_fill(future, -math.inf), dim=-1) @ v[:, group])
        return self._linear(torch.cat(out, dim=-1), prefix + "o_proj")

    def _mlp(self, x, name):
        gate = self._linear(x, name + "gate_proj")
        return self._linear(gate * torch.sigmoid(gate) * self._linear(x, name + "up_proj"), name + "down_proj")

    def _experts(self, x, name):
        """Row by row: the sum over the row's experts, each times its share of probability."""
        out = []
        for row in x:
            scores = (self.weights[name + "gate.weight"] @ row).exp()
            probabilities = scores / scores.sum()
            chosen = sorted(range(len(scores)), key=lambda expert: -probabilities[expert].item())
            chosen = chosen[:self.config["num_experts_per_tok"]]
            total = sum(probabilities[expert] for expert in chosen) if self.config["norm_topk_prob"] else 1
            out.append(sum(probabilities[expert] / total * self._mlp(row, f"{name}experts.{expert}.") for expert in chosen))
        return torch.stack(out)

    def hidden(self, tokens):
        x = self.weights["model.embed_tokens.weight"][torch.as_tensor(tokens)]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            x = x + self._attention(self._norm(x, name + "input_layernorm.weight"), layer)
            y = self._norm(x, name + "post_attention_layernorm.weight")
            x = x + (self._experts(y, name + "mlp.") if "moe_intermediate_size" in self.config else self._mlp(y, name + "mlp."))
        return self._norm(x, "model.norm.weight")

    def logits(self, prompt, response):
        """[R, V]: the rows that predict the response."""
        hidden = self.hidden(list(prompt) + list(response))[len(prompt) - 1:-1]
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return hidden @ head.T

    def parameters(self):
        return self.weights
