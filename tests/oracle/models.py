"""Small random models as Hugging Face directories, written by transformers itself.

Norm weights are not ones and biases not zeros, so that a forgotten factor shows. The same seed gives the same weights.
"""

import dataclasses
import json
import os
import shutil

import torch
import transformers

LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 32}


@dataclasses.dataclass(frozen=True)
class Spec:
    """Shapes of one model. `scaled` asks for llama3 rope scaling; `spelling` is the transformers version of config.json;
    `window` is Mistral's."""

    family: str = "llama"
    hidden: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 8
    ffn: int = 48
    vocab: int = 96
    positions: int = 256
    theta: float = 10000.0
    tied: bool = False
    scaled: bool = False
    dtype: str = "float32"
    seed: int = 1
    spelling: int = 5
    gain: float = 1.5
    window: int | None = None
    experts: int = 5  # of qwen3_moe
    per_token: int = 2
    sum_to_one: bool = True


def drawn_experts(rng, family, sets=1):
    """Fields of a Spec: few experts or many, also one alone and all of them for each token. `sets` of ranks have as many each."""
    if family != "qwen3_moe":
        return {}
    experts = sets * rng.choice([1, 2, 3, 5] if sets > 1 else [1, 2, 3, 5, 8, 13])
    return {"experts": experts, "per_token": rng.randint(1, min(experts, 4)), "sum_to_one": rng.random() < 0.5}


def _config(spec):
    rope = {"rope_theta": spec.theta, "rope_type": "default"}
    if spec.scaled:
        rope = {"rope_theta": spec.theta, **LLAMA3_SCALING}
    common = dict(
        vocab_size=spec.vocab, hidden_size=spec.hidden, intermediate_size=spec.ffn, num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads, num_key_value_heads=spec.kv_heads, max_position_embeddings=spec.positions,
        rms_norm_eps=1e-6, tie_word_embeddings=spec.tied, rope_parameters=rope, attention_dropout=0.0,
        bos_token_id=0, eos_token_id=1, pad_token_id=None)
    if spec.family == "llama":
        return transformers.LlamaConfig(head_dim=spec.head_size, **common)
    if spec.family == "qwen2":
        assert spec.head_size * spec.heads == spec.hidden, "qwen2 has no head size of its own"
        return transformers.Qwen2Config(**common)
    if spec.family == "qwen3":
        return transformers.Qwen3Config(head_dim=spec.head_size, **common)
    if spec.family == "qwen3_moe":
        return transformers.Qwen3MoeConfig(head_dim=spec.head_size, moe_intermediate_size=spec.ffn, num_experts=spec.experts,
                                           num_experts_per_tok=spec.per_token, norm_topk_prob=spec.sum_to_one, **common)
    if spec.family == "mistral":
        return transformers.MistralConfig(head_dim=spec.head_size, sliding_window=spec.window, **common)
    raise ValueError(f"unknown family {spec.family}")


def _fill(model, spec):
    generator = torch.Generator().manual_seed(spec.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if parameter.dim() == 1 and name.endswith("bias"):
                value = 0.3 * noise
            elif parameter.dim() == 1:
                value = 1.0 + 0.2 * noise
            elif "embed_tokens" in name:
                value = noise if not spec.tied else noise * spec.gain / spec.hidden**0.5
            else:
                value = noise * spec.gain / parameter.shape[-1]**0.5
            parameter.copy_(value)


def make(directory, spec, max_shard_size="1GB"):
    """Writes the model; returns the directory."""
    torch.manual_seed(spec.seed)
    model = transformers.AutoModelForCausalLM.from_config(_config(spec), dtype=torch.float32)
    _fill(model, spec)
    model = model.to(getattr(torch, spec.dtype))
    model.config.dtype = getattr(torch, spec.dtype)
    os.makedirs(directory, exist_ok=True)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    if spec.spelling == 4:
        _spell_as_transformers_4(directory)
    return directory


def _spell_as_transformers_4(directory):
    path = os.path.join(directory, "config.json")
    with open(path) as file:
        config = json.load(file)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope.get("rope_type") != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    with open(path, "w") as file:
        json.dump(config, file, indent=2)


def files_tensors(parameters):
    """By their names in the files: transformers has the experts of a layer in two tensors."""
    for name, parameter in parameters.items():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            yield name, parameter
            continue
        path, joined = name.rsplit(".", 1)
        for expert, matrix in enumerate(parameter):
            half = len(matrix) // 2
            parts = {"gate_proj": matrix[:half], "up_proj": matrix[half:]} if "gate" in joined else {joined: matrix}
            for part, value in parts.items():
                yield f"{path}.{expert}.{part}.weight", value


def make_snapshot(cache, spec, max_shard_size="1GB"):
    """A hub cache: regular files under blobs/, a snapshot directory of relative links. Returns the snapshot."""
    blobs, snapshot = os.path.join(cache, "blobs"), os.path.join(cache, "snapshots", "0123456789abcdef")
    plain = make(os.path.join(cache, "plain"), spec, max_shard_size)
    os.makedirs(blobs)
    os.makedirs(snapshot)
    for index, name in enumerate(sorted(os.listdir(plain))):
        blob = f"{index:040x}"
        shutil.move(os.path.join(plain, name), os.path.join(blobs, blob))
        os.symlink(os.path.join("..", "..", "blobs", blob), os.path.join(snapshot, name))
    os.rmdir(plain)
    return snapshot


# The models of the parity table: each family, every GQA ratio from none to one K/V head, tied and not, scaled and not.
PARITY = {
    "llama": Spec("llama"),
    "llama_tied": Spec("llama", tied=True, kv_heads=4, seed=2),
    "llama_scaled": Spec("llama", scaled=True, kv_heads=1, head_size=16, seed=3),
    "qwen2": Spec("qwen2", seed=4),
    "qwen2_tied_bf16": Spec("qwen2", tied=True, kv_heads=1, dtype="bfloat16", seed=5, spelling=4),
    "qwen3": Spec("qwen3", head_size=16, seed=6),
    "qwen3_tied_fp16": Spec("qwen3", head_size=16, tied=True, kv_heads=4, dtype="float16", seed=7, theta=1e6),
    "llama_scaled_4": Spec("llama", scaled=True, heads=6, kv_heads=3, hidden=48, dtype="bfloat16", seed=8, spelling=4),
    "qwen3_moe": Spec("qwen3_moe", head_size=16, ffn=24, seed=11),
    "qwen3_moe_raw_fp16": Spec("qwen3_moe", heads=6, kv_heads=3, tied=True, ffn=18, experts=8, per_token=3, sum_to_one=False,
                               dtype="float16", seed=12, spelling=4),
    "mistral": Spec("mistral", head_size=16, seed=9),
    "mistral_tied_bf16": Spec("mistral", tied=True, kv_heads=1, dtype="bfloat16", seed=10, spelling=4, window=256),
}
