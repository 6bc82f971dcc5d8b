"""transformers opens a checkpoint's folder, and finds in it what the engine held: masters by its own model class, moments by
the safetensors library."""

import itertools
import os
import pathlib
import subprocess

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from oracle.models import Spec, files_tensors, make

SPECS = [Spec(family="llama", tied=True, scaled=True), Spec(family="qwen2", dtype="bfloat16"), Spec(family="qwen3", tied=True, seed=3),
         Spec(family="qwen3_moe", ffn=8, seed=4)]
RUNS = [("fp32", 1), ("bf16", 3), ("fp64", 2)]


def save(tmp_path, spec, dtype, ranks, shards):
    """The checkpoint's folder, and the tensors that the engine held as it was saved."""
    model, data = tmp_path / "model", tmp_path / "data"
    make(model, spec, max_shard_size="8KB" if shards else "1GB")
    assert len(list(model.glob("*.safetensors"))) > (2 if shards else 0)
    binary = os.path.join(os.environ["STEMMA_BUILD_DIR"], "tests", "checkpoint_probe")
    subprocess.run([binary, model, data, dtype, str(ranks)], check=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return data / "checkpoints" / "c", load_file(data / "held.safetensors")


def held_of(held, kind):
    return {name.removeprefix(f"{kind} "): tensor for name, tensor in held.items() if name.startswith(f"{kind} ")}


def first_difference(found, held):
    """The first tensor of `held` that is missing, or has another dtype, shape or bit; None: all are there."""
    for name, tensor in held.items():
        other = found.get(name)
        if other is None or other.dtype != tensor.dtype or other.shape != tensor.shape:
            return name
        if not torch.equal(other.contiguous().view(torch.uint8), tensor.view(torch.uint8)):
            return name
    return None


@pytest.mark.parametrize("spec,run", list(itertools.product(SPECS, RUNS)), ids=lambda value: getattr(value, "family", str(value)))
def test_transformers_finds_the_masters(tmp_path, spec, run):
    dtype, ranks = run
    folder, held = save(tmp_path, spec, dtype, ranks, shards=ranks > 1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert next(model.parameters()).dtype == (torch.float64 if dtype == "fp64" else torch.float32)
    masters = held_of(held, "master")
    state = {name: tensor for name, tensor in files_tensors(model.state_dict()) if not (spec.tied and name == "lm_head.weight")}
    assert state.keys() == masters.keys()
    assert first_difference(state, masters) is None
    files = {path.name for path in folder.glob("model*.safetensors")}
    for kind in ("exp_avg", "exp_avg_sq"):
        assert {path.name for path in (folder / "optim").glob(f"{kind}-*")} == {f"{kind}-{name}" for name in files}
        moments = {}
        for path in (folder / "optim").glob(f"{kind}-*"):
            tensors = load_file(path)
            assert tensors.keys() == load_file(folder / path.name.removeprefix(f"{kind}-")).keys()
            moments |= tensors
        assert moments.keys() == masters.keys()
        assert first_difference(moments, held_of(held, kind)) is None
        assert all(tensor.abs().max() > 0 for tensor in moments.values()), "of two steps"


def test_a_bit_that_differs_is_found(tmp_path):
    folder, held = save(tmp_path, SPECS[0], "fp32", 1, shards=False)
    path = pathlib.Path(folder) / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name].view(torch.int32)[3, 5] ^= 1
    save_file(tensors, path, metadata={"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert first_difference(model.state_dict(), held_of(held, "master")) == name
