"""transformers' models, truly in float64: the independent implementation that Stemma is compared with.

model.double() is not enough: transformers casts to float32 in RMSNorm, in the rotary frequencies and angles, in eager
attention's softmax and in that of a router. Those are replaced here, for float64 models only, inside this object's calls only.
Every trajectory runs alone and in full: no prefix sharing, no padding, no packing.
"""

import contextlib
import math
import sys
import types

import torch
import transformers

transformers.utils.logging.disable_progress_bar()


def _norm_forward(self, x):
    return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))


def _inverse_frequencies(config):
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    frequencies = float(rope["rope_theta"]) ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if rope["rope_type"] == "default":
        return frequencies
    assert rope["rope_type"] == "llama3", rope
    wavelengths = 2 * math.pi / frequencies
    old, low, high = (rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"])
    smooth = (old / wavelengths - low) / (high - low)
    between = (1 - smooth) * frequencies / rope["factor"] + smooth * frequencies
    scaled = torch.where(wavelengths > old / low, frequencies / rope["factor"], frequencies)
    return torch.where((wavelengths <= old / low) & (wavelengths >= old / high), between, scaled)


def _rotary_forward(self, x, position_ids):
    angles = position_ids[..., None].to(torch.float64) * _inverse_frequencies(self.config)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def _route(self, x):
    logits = x.reshape(-1, self.hidden_dim) @ self.weight.T
    weights, chosen = torch.topk(torch.softmax(logits, dim=-1), self.top_k, dim=-1)
    if self.norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return logits, weights, chosen


class _Experts:
    """The experts of one layer under the names of their checkpoint, a parameter each: transformers has them in two tensors,
    which are put together from these for each forward."""

    def __init__(self, name, module):
        self._module, self.parameters = module, {}
        ffn = module.intermediate_dim
        for expert in range(module.num_experts):
            gate_up = module.gate_up_proj.detach()[expert]
            for key, value in (("gate", gate_up[:ffn]), ("up", gate_up[ffn:]), ("down", module.down_proj.detach()[expert])):
                self.parameters[f"{name}.{expert}.{key}_proj.weight"] = value.clone().requires_grad_(True)
        del module.gate_up_proj, module.down_proj

    def assemble(self):
        values = list(self.parameters.values())
        self._module.gate_up_proj = torch.stack([torch.cat(pair) for pair in zip(values[0::3], values[1::3])])
        self._module.down_proj = torch.stack(values[2::3])


def _eager_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    else:
        rows = scores.shape[-1]
        scores = scores.masked_fill(torch.ones(rows, rows, dtype=torch.bool).triu(1), -math.inf)
    weights = torch.softmax(scores, dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class Hf64:
    """`patched=False` is the control: transformers' own idea of float64."""

    def __init__(self, directory, patched=True):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager").eval()
        self.patched = patched
        self._experts = [_Experts(name, module) for name, module in self.model.named_modules()
                         if type(module).__name__.endswith("MoeExperts")]
        self._module = sys.modules[type(self.model).__module__]
        self.chosen = []  # of the last call: by layer [P + R, k], the experts of each token
        for module in self.model.modules():
            if type(module).__name__.endswith("TopKRouter"):
                module.register_forward_hook(lambda _module, _inputs, output: self.chosen.append(output[2].detach()))
        if not patched:
            return
        for module in self.model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = types.MethodType(_norm_forward, module)
            elif type(module).__name__.endswith("RotaryEmbedding"):
                module.forward = types.MethodType(_rotary_forward, module)
            elif type(module).__name__.endswith("TopKRouter"):
                module.forward = types.MethodType(_route, module)

    @contextlib.contextmanager
    def _float64_attention(self):
        original = self._module.eager_attention_forward
        if self.patched:
            self._module.eager_attention_forward = _eager_attention
        try:
            yield
        finally:
            self._module.eager_attention_forward = original

    def logits(self, prompt, response):
        """[R, V]: the rows that predict the response."""
        rows = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
        tokens = torch.tensor([list(prompt) + list(response)])
        for experts in self._experts:
            experts.assemble()
        self.chosen.clear()
        with self._float64_attention():
            return self.model(input_ids=tokens, use_cache=False, logits_to_keep=rows).logits[0]

    def parameters(self):
        """By Hugging Face name; a tied model has no lm_head.weight."""
        parameters = dict(self.model.named_parameters())
        for experts in self._experts:
            parameters |= experts.parameters
        return parameters

    def zero_grad(self):
        for parameter in self.parameters().values():
            parameter.grad = None

    def gradients(self):
        return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in self.parameters().items()}


def log_probs_and_entropy(logits, response, temperature):
    """The response's log-probs [R] and entropies [R] under temperature-scaled logits."""
    log_softmax = torch.log_softmax(logits / temperature, dim=-1)
    chosen = log_softmax.gather(1, torch.tensor(list(response), dtype=torch.int64)[:, None])[:, 0]
    return chosen, -(log_softmax.exp() * log_softmax).sum(-1)
