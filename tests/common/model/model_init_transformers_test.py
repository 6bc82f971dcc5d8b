"""transformers opens what model_init writes, and our reader opens what transformers writes."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest
import torch
import transformers

from oracle import models

TOOL = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "tests" / "model_tool"
SIZES = dict(vocab_size=97, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64, rope_theta=500000.0)
EXPERTS = dict(num_experts=5, num_experts_per_tok=3, moe_intermediate_size=20)
FAMILIES = {
    "llama": transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=False),
    "llama-tied": transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=False),
    "qwen2-tied": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=6, tie_word_embeddings=False),
    "qwen3-tied": transformers.Qwen3Config(**SIZES, head_dim=6, tie_word_embeddings=True),
    "qwen3_moe": transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=6, norm_topk_prob=True),
    "qwen3_moe-tied": transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, tie_word_embeddings=True),
    "mistral": transformers.MistralConfig(**SIZES, head_dim=6, sliding_window=None),
    "mistral-tied": transformers.MistralConfig(**SIZES, sliding_window=256, tie_word_embeddings=True),
}


def tool(*args):
    return subprocess.run([str(TOOL), *map(str, args)], capture_output=True, text=True)


def make(folder, config, name="made", seed=7, dtype="F32", norm_std=0.1, max_shard_bytes=0):
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**config.to_dict(), "architectures": [type_of(config) + "ForCausalLM"]}))
    done = tool("init", path, folder / name, seed, dtype, norm_std, max_shard_bytes)
    assert done.returncode == 0, done.stderr
    return folder / name


def type_of(config):
    return "".join(word.capitalize() for word in config.model_type.split("_"))


def sizes_of(config):
    """Those that the model depends on: with experts no layer has an MLP of intermediate_size."""
    return [name for name in SIZES if name != "intermediate_size"] + list(EXPERTS) if "moe" in config.model_type else list(SIZES)


def load(path):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], (key, info[key])
    return model


# splitmix64 over (seed, FNV-1a of the name), twelve 16-bit integers to a normal: written apart from the C++.
M64 = (1 << 64) - 1


def mixed(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def normals(seed, name, count):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & M64
    state = mixed(mixed(seed) ^ h)
    for _ in range(count):
        total = -6 * 0xFFFF
        for _ in range(3):
            state = (state + 0x9E3779B97F4A7C15) & M64
            total += sum(mixed(state) >> shift & 0xFFFF for shift in (0, 16, 32, 48))
        yield total / 65536


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_shard_bytes", [0, 8192])
def test_transformers_opens_a_made_model(tmp_path, family, max_shard_bytes):
    config = FAMILIES[family]
    model = load(make(tmp_path, config, max_shard_bytes=max_shard_bytes))
    assert type(model).__name__ == type_of(config) + "ForCausalLM"
    for name in (*sizes_of(config), "tie_word_embeddings", "head_dim", "rope_parameters", "model_type", "norm_topk_prob"):
        if hasattr(config, name) and getattr(config, name) is not None:
            assert getattr(model.config, name) == getattr(config, name), name
    parameters = dict(model.named_parameters())
    assert all(p.dtype == torch.float32 for p in parameters.values())
    for name, parameter in models.files_tensors(parameters):
        norm = name.endswith("norm.weight")
        expected = torch.tensor([(1 if norm else 0) + n * (0.1 if norm else 0.02)
                                 for n in normals(7, name, parameter.numel())], dtype=torch.float64).float()
        assert torch.equal(parameter.detach().flatten(), expected), name
    assert torch.isfinite(model(torch.arange(12)[None]).logits).all()


@pytest.mark.parametrize("dtype,torch_dtype", [("BF16", torch.bfloat16), ("F16", torch.float16), ("F64", torch.float64)])
def test_other_dtypes_are_the_same_values_rounded(tmp_path, dtype, torch_dtype):
    # 30: large enough for values across the exponents; bf16 and fp16 are rounded from fp32, fp32 from fp64.
    config = FAMILIES["qwen2"]
    exact = load(make(tmp_path, config, "F64", dtype="F64", norm_std=30)).state_dict()
    single = load(make(tmp_path, config, "F32", norm_std=30)).state_dict()
    rounded = load(make(tmp_path, config, "other", dtype=dtype, norm_std=30)).state_dict()
    for name, value in rounded.items():
        assert value.dtype == torch_dtype, name
        assert torch.equal(single[name], exact[name].float()), name
        assert torch.equal(value, (exact if dtype == "F64" else single)[name].to(torch_dtype)), name


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves_opens(tmp_path, family):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family])
    model.save_pretrained(tmp_path / "saved", max_shard_size="8KB")
    done = tool("open", tmp_path / "saved")
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    for name in (*sizes_of(FAMILIES[family]), "tie_word_embeddings"):
        assert read[name] == getattr(FAMILIES[family], name), name
    rope = FAMILIES[family].rope_parameters
    assert {k: v for k, v in rope.items() if v is not None} == read["rope_parameters"]


def test_a_sliding_window_in_use_is_refused(tmp_path):
    config = transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "saved")
    done = tool("open", tmp_path / "saved")
    assert done.returncode == 1
    assert "layer_types[1]" in done.stderr


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider", f"--basetemp={tempfile.mkdtemp()}"]))
