"""Makes the golden cases beside this file: a model with heads of 64, one request, and what transformers in float64 gives.

    PYTHONPATH=tests third_party/venv/bin/python tests/gpu/golden/make_golden.py

Each folder holds model/ (a Hugging Face directory, bf16), request.json (a trace line), expected.safetensors (float64: all
log-probs, and the gradients of some parameters) and about.json (loss, seed, versions). They go into the bundle: the device is compared with numbers of another implementation, which needs not be installed there.
"""

import dataclasses
import json
import os
import platform

import safetensors
import torch
import transformers
from safetensors.torch import save_file

from oracle import hf64, models, requests, step

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL = dict(hidden=64, layers=2, heads=2, kv_heads=1, head_size=64, ffn=96, vocab=104, positions=256, dtype="bfloat16")
SHAPE = [(70, [12, 1, 33]), (1, [6, 5]), (18, [9])]
KEPT = ("model.layers.0.self_attn.k_", "model.layers.0.self_attn.v_", "model.layers.0.input_layernorm.", "model.norm.", "lm_head.")

CASES = {
    "llama": (models.Spec("llama", seed=201, scaled=True, **SMALL), "vanilla", dict(kl="k3", entropy_coeff=0.0625, temperature=0.75)),
    "qwen3": (models.Spec("qwen3", seed=202, **SMALL), "gspo", dict(loss_agg_mode="seq-mean-token-mean")),
}


def make(name, spec, loss, options):
    folder = os.path.join(HERE, name)
    directory = models.make(os.path.join(folder, "model"), spec)
    oracle = hf64.Hf64(directory)
    request = requests.make(oracle, SHAPE, requests.LOSSES[loss], seed=spec.seed, vocab=spec.vocab, **options)
    margin = requests.kink_margin(request, step.log_probs(oracle, request))
    assert margin > 1e-3, margin
    result = step.run(oracle, request)
    tensors = {f"grad.{key}": value.contiguous() for key, value in result.gradients.items() if key.startswith(KEPT)}
    tensors.update({f"log_prob.{key}": value for key, value in result.log_probs.items()})
    save_file(tensors, os.path.join(folder, "expected.safetensors"))
    about = {"loss": result.loss, "spec": dataclasses.asdict(spec), "options": {"loss": loss, **options},
             "made_with": {"torch": torch.__version__, "transformers": transformers.__version__,
                           "safetensors": safetensors.__version__, "python": platform.python_version()}}
    for file_name, content in (("request.json", request), ("about.json", about)):
        with open(os.path.join(folder, file_name), "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case_name, arguments in CASES.items():
        make(case_name, *arguments)
