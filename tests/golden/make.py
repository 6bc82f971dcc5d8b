"""Makes the golden cases beside this file: a model of a few thousand parameters, one request, and what a step of it gives.

    PYTHONPATH=tests third_party/venv/bin/python tests/golden/make.py

Each folder holds model/ (a Hugging Face directory), request.json (a trace line), expected.safetensors (float64: log-probs
and gradients before clipping) and about.json (loss, seed, versions of what made them). They change only with the API's
meaning; a change of theirs is a change of what Stemma computes, and the commit says why.
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
TINY = dict(hidden=16, layers=2, heads=4, kv_heads=2, ffn=24, vocab=48, positions=64)
SHAPE = [(9, [4, 1, 6, 0]), (1, [2, 5]), (5, [3])]

CASES = {
    "llama_vanilla": (models.Spec("llama", head_size=4, seed=101, scaled=True, **TINY), "vanilla",
                      dict(kl="k3", entropy_coeff=0.0625, temperature=0.75)),
    "qwen2_gspo": (models.Spec("qwen2", head_size=4, seed=102, tied=True, dtype="bfloat16", **TINY), "gspo",
                   dict(loss_agg_mode="seq-mean-token-mean")),
    "qwen3_cispo": (models.Spec("qwen3", head_size=8, seed=103, **TINY), "cispo", dict(loss_agg_mode="prompt-mean")),
}


def make(folder, spec, shape, loss, options, keeps=lambda parameter: True):
    """Writes one case; `shape` is that of the request's groups, `keeps` says which parameters' gradients are expected."""
    directory = models.make(os.path.join(folder, "model"), spec)
    oracle = hf64.Hf64(directory)
    request = requests.make(oracle, shape, requests.LOSSES[loss], seed=spec.seed, vocab=spec.vocab, **options)
    margin = requests.kink_margin(request, step.log_probs(oracle, request))
    assert margin > 1e-3, margin
    result = step.run(oracle, request)
    tensors = {f"grad.{key}": value.contiguous() for key, value in result.gradients.items() if keeps(key)}
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
    for case_name, (spec_of_case, loss_of_case, options_of_case) in CASES.items():
        make(os.path.join(HERE, case_name), spec_of_case, SHAPE, loss_of_case, options_of_case)
