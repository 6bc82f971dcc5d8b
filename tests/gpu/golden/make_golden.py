"""Makes the golden cases beside this file: a model with heads of 64, one request, and what transformers in float64 gives.

    PYTHONPATH=tests third_party/venv/bin/python tests/gpu/golden/make_golden.py

Each folder holds model/ (a Hugging Face directory, bf16), request.json (a trace line), expected.safetensors (float64: all
log-probs, and the gradients of some parameters) and about.json (loss, seed, versions), as tests/golden/make.py writes them. They go into the bundle: the
device is compared with numbers of another implementation, which needs not be installed there.
"""

import os

import torch

from golden import make
from oracle import models

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL = dict(hidden=64, layers=2, heads=2, kv_heads=1, head_size=64, ffn=96, vocab=104, positions=256, dtype="bfloat16")
SHAPE = [(70, [12, 1, 33]), (1, [6, 5]), (18, [9])]
KEPT = ("model.layers.0.self_attn.k_", "model.layers.0.self_attn.v_", "model.layers.0.input_layernorm.", "model.norm.", "lm_head.")

CASES = {
    "llama": (models.Spec("llama", seed=201, scaled=True, **SMALL), "vanilla", dict(kl="k3", entropy_coeff=0.0625, temperature=0.75)),
    "qwen3": (models.Spec("qwen3", seed=202, **SMALL), "gspo", dict(loss_agg_mode="seq-mean-token-mean")),
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, (spec, loss, options) in CASES.items():
        make.make(os.path.join(HERE, name), spec, SHAPE, loss, options, keeps=lambda parameter: parameter.startswith(KEPT))
