"""The shapes that are timed, their exact FLOPs, and the targets they are held to."""

import dataclasses

from oracle import models

# The model of every benchmark: 27.8 M parameters, like a Llama.
SPEC = models.Spec("llama", hidden=512, layers=8, heads=8, kv_heads=4, head_size=64, ffn=1408, vocab=4096,
                   positions=4096, gain=0.5, seed=1)


@dataclasses.dataclass(frozen=True)
class Shape:
    prompt: int
    response: int
    count: int
    target: float   # of the FLOP ideal
    repeats: int    # interleaved rounds
    baselines: bool  # transformers and prefix_grouper too

    def __str__(self):
        return f"{self.prompt}/{self.response}/{self.count}"


SHAPES = (
    Shape(1024, 256, 8, 0.97, 5, True),
    Shape(2048, 128, 16, 0.97, 7, False),
    Shape(2048, 128, 64, 0.97, 3, False),
    Shape(512, 512, 4, 0.95, 7, True),
    Shape(64, 512, 4, 0.95, 9, True),
)

DENSE_OF_MM = 0.65            # at 1024/256
DENSE_OVER_TRANSFORMERS = 1.15
REUSE_OVER_PREFIX_GROUPER = 1.3
PLANNER_SECONDS = {16384: 1, 62500: 5}  # groups of 16: at most so long
HOT_SPLIT, HOT_RANKS = 1.15, 8  # the slowest rank over the mean with one group as expensive as all others, up to so many ranks
PLACEMENT = {(16384, 64): (0.010, 0.001)}  # groups and ranks: at most so many seconds, and so far over the lower bound


def _layer_rows(spec):
    """Forward multiply-adds a row: K and V only, and the whole layer."""
    kv = 2 * spec.hidden * spec.kv_heads * spec.head_size
    return kv, kv + 2 * spec.hidden * spec.heads * spec.head_size + 3 * spec.hidden * spec.ffn


ATTENTION_FLOPS = 12.0                 # of a pair of positions and an element of a head: 4 forward, 8 backward
ATTENTION_FLOPS_RECOMPUTED = 14.0      # with the scores, which a backward that keeps none of them computes again


def _attention(spec, pairs, each):
    return each * spec.heads * spec.head_size * pairs


def flops(spec, shape, attention=ATTENTION_FLOPS):
    """(dense, reuse), forward and backward, both pruned: the last response token is not run, and in the last layer rows
    before the last prompt token compute K and V only; the head runs on response positions."""
    kv, layer = _layer_rows(spec)
    before, rows, layers = shape.prompt - 1, shape.response, spec.layers
    head = 6.0 * spec.hidden * spec.vocab * rows
    suffix = 6.0 * layer * layers * rows + _attention(spec, layers * (rows * before + rows * (rows + 1) / 2), attention) + head
    prefix = 6.0 * before * (layer * (layers - 1) + kv) + _attention(spec, (layers - 1) * before * (before + 1) / 2, attention)
    return shape.count * (prefix + suffix), prefix + shape.count * suffix


def ideal(spec, shape, attention=ATTENTION_FLOPS):
    """The ratio of dense to reuse by FLOPs."""
    dense, reuse = flops(spec, shape, attention)
    return dense / reuse
