"""How far fp32 runs of one trace drift apart, step by step; writes docs/drift.md.

    PYTHONPATH=tests third_party/venv/bin/python tests/bench/drift.py --build build/release

Twenty steps (AdamW, eps 1e-8) of reuse and dense in fp32 beside dense in fp64, from the same weights. AdamW divides a
gradient by its own size, so where a gradient is rounding noise the step is as long as any other; the table shows how much
that makes after each step. Not a test: there is no exact answer to compare with.
"""

import argparse
import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))

from oracle import hf64, models, requests, step  # noqa: E402
from oracle.probe import Probe  # noqa: E402

STEPS = 20
SPEC = models.Spec("qwen3", hidden=64, layers=4, heads=4, kv_heads=2, head_size=32, ffn=160, vocab=256, seed=31)


def whole_trace(directory):
    shape = [(24 + 3 * (g % 5), [6 + g % 4, 9, 3, 12]) for g in range(2 * STEPS)]
    request = requests.make(hf64.Hf64(directory), shape, requests.LOSSES["vanilla"], vocab=SPEC.vocab, old_from="WEIGHTS",
                            adam={"eps": 1e-8, "max_grad_norm": 1.0})
    return requests.with_fields(request, ppo_mini_batch_size=2)


def weights_after(probe, directory, request, steps, schedule, dtype):
    cut = {**request, "groups": request["groups"][:2 * steps]}
    answer, tensors = probe.run(directory, cut, schedule, dtype=dtype, apply=True)
    return answer["loss"], {name: value for name, value in tensors.items() if name.startswith("weight.")}


def largest(left, right):
    return max((left[name] - right[name]).abs().max().item() for name in left)


def relative(left, right, start):
    """Distance of two weights in units of the way walked."""
    apart = sum((left[name] - right[name]).square().sum().item() for name in left)
    walked = sum((right[name] - start[name.removeprefix("weight.")]).square().sum().item() for name in left)
    return (apart / walked) ** 0.5


def rows(probe, directory):
    request = whole_trace(directory)
    assert len(step.mini_batches(request)) == STEPS
    rate = request["header"]["adam"]["learning_rate"]
    start = {name: p.detach() for name, p in hf64.Hf64(directory).parameters().items()}
    for steps in range(1, STEPS + 1):
        loss_reuse, reuse = weights_after(probe, directory, request, steps, "REUSE", "fp32")
        loss_dense, dense = weights_after(probe, directory, request, steps, "DENSE", "fp32")
        _, exact = weights_after(probe, directory, request, steps, "DENSE", "fp64")
        yield (f"| {steps} | {loss_reuse:.7f} | {loss_dense:.7f} | {largest(reuse, dense) / (rate * steps):.1e} | "
               f"{relative(reuse, dense, start):.1e} | {relative(reuse, exact, start):.1e} | "
               f"{relative(dense, exact, start):.1e} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--output", default=os.path.join(ROOT, "docs", "drift.md"))
    arguments = parser.parse_args()
    os.environ["STEMMA_BUILD_DIR"] = os.path.abspath(arguments.build)
    with tempfile.TemporaryDirectory() as scratch:
        directory = models.make(os.path.join(scratch, "model"), SPEC)
        probe = Probe(scratch)
        table = list(rows(probe, directory))
        probe.close()
    page = ["# Drift of fp32 runs", "",
            "Twenty steps of a trace (2 groups of 4 rollouts a step, AdamW with eps 1e-8, lr 1e-3) on a small Qwen3, from the",
            "same weights. In float64 reuse and dense end within 1e-6 · lr · steps of each other (a test). In fp32 both drift",
            "from the float64 run, and from each other, by rounding, and by about as much.", "",
            "* largest: the largest difference of a weight between reuse and dense, in units of lr · steps.",
            "* The other columns: the norm of the difference of all weights over the norm of the way walked so far.", "",
            "Made by `tests/bench/drift.py`.", "",
            "| step | loss, reuse | loss, dense | largest | reuse to dense | reuse to fp64 | dense to fp64 |",
            "|---:|---:|---:|---:|---:|---:|---:|", *table]
    with open(arguments.output, "w") as file:
        file.write("\n".join(page) + "\n")
    print("\n".join(page))


if __name__ == "__main__":
    main()
