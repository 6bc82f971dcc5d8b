"""What tests of docs/frameworks.md share: responses with the policy's log-probs and their gradient, the page's snippets, and how far
a step's loss and gradient norm are from a formula's. Everything is float64, but for what is sent in float32."""

import contextlib
import dataclasses
import math
import random
import types
from typing import List, Optional

import stemma
import torch
from e2e.errors.server import Cluster
from k1_frameworks_test import block_with
from oracle import hf64

STILL = stemma.adamw(0.0, weight_decay=0.0)
SAME, OTHER = 1e-6, 1e-4  # log-probs are sent in float32
KL_TYPES = [name + plus for name in ("k1", "abs", "k2", "k3") for plus in ("", "+")]


@contextlib.contextmanager
def running():
    """Gives a client and the weights of its server, which no test changes."""
    with Cluster(flags=("--dtype", "fp64")) as cluster, stemma.Client(cluster.address) as client:
        yield types.SimpleNamespace(client=client, model=hf64.Hf64(client.export("start", dtype="fp64")), norms={})


@dataclasses.dataclass
class Row:
    """One response: what was sampled, and the policy's log-probs with their gradient."""

    prompt: List[int]
    tokens: List[int]
    mask: torch.Tensor
    group: int
    reward: float
    advantage: torch.Tensor  # of each token; as everything that is sent, numbers of float32
    now: Optional[torch.Tensor] = None
    entropy: Optional[torch.Tensor] = None
    old: Optional[torch.Tensor] = None
    ref: Optional[torch.Tensor] = None
    engine: Optional[torch.Tensor] = None

    @property
    def length(self):
        return len(self.tokens)


def rows_of(bench, *, temperature=1.0, sizes=(3, 3, 3), per_token=False, on_policy=False, spread=0.3, seed=0, whole=True):
    """Makes rows of groups of these sizes. whole: no row is masked in whole."""
    rng = random.Random(seed)
    numbers = lambda count, width: torch.tensor([rng.gauss(0, width) for _ in range(count)]).float().double()  # noqa: E731
    rows = []
    for group, size in enumerate(sizes):
        prompt = [rng.randrange(46) for _ in range(rng.randint(2, 5))]
        for _ in range(size):
            tokens = [rng.randrange(46) for _ in range(rng.choice([2, 3, 5, 8]))]
            mask = torch.tensor([1.0] + [float(rng.random() < 0.7) for _ in tokens[1:]])
            if not whole and len(rows) % 4 == 1:
                mask = torch.zeros(len(tokens))
            advantage = numbers(len(tokens) if per_token else 1, 1.0).expand(len(tokens))
            rows.append(Row(prompt, tokens, mask.double(), group, rng.choice([0.0, 0.25, 1.0]), advantage))
    for row in rows:
        row.now, row.entropy = hf64.log_probs_and_entropy(bench.model.logits(row.prompt, row.tokens), row.tokens, temperature)
        near = lambda width: (row.now.detach() + numbers(row.length, width)).clamp(max=0.0).float().double()  # noqa: B023, E731
        row.old = row.now.detach() if on_policy else near(spread)
        row.ref, row.engine = near(spread), near(spread / 2)
    return rows


def page(bench, *texts, **scope):
    """Runs snippets of docs/frameworks.md without changing a weight; returns their names."""
    scope = {"client": bench.client, **scope}
    for text in ("def by_prompt", *texts):
        exec(compile(block_with(text).replace("adamw(1e-6)", "adamw(0.0, weight_decay=0.0)"), "docs/frameworks.md", "exec"), scope)
    return types.SimpleNamespace(**scope)


def distances(bench, theirs, result):
    """Returns how far loss and gradient norm of a step are from theirs, by their size."""
    if theirs not in bench.norms:
        parameters = list(bench.model.parameters().values())
        gradients = torch.autograd.grad(theirs, parameters, allow_unused=True, retain_graph=True)
        bench.norms[theirs] = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients if gradient is not None))
    norm = bench.norms[theirs]
    loss = abs(result.metrics["actor/loss"] - theirs.item()) / max(abs(theirs.item()), 0.01)
    return loss, abs(result.metrics["actor/grad_norm"] - norm) / norm


def distance(bench, theirs, made, **changed):
    """Returns the larger of the distances, of a step of the page's groups under its loss with fields changed."""
    result = made.result if not changed else bench.client.update_actor(made.groups, dataclasses.replace(made.loss, **changed), STILL)
    return max(distances(bench, theirs, result))


# The terms of all of them.

def clipped(row, log_ratio, low=0.2, high=0.2):
    ratio = log_ratio.exp()
    return torch.maximum(-row.advantage * ratio, -row.advantage * ratio.clamp(1 - low, 1 + high))


def of_sequence(row, log_ratio):
    """Gives each token the mean log ratio of its response."""
    return ((log_ratio * row.mask).sum() / row.mask.sum().clamp(min=1)).expand(row.length)


def k3(row):
    x = row.ref - row.now
    return x.exp() - 1 - x


def token_mean(rows, terms):
    return sum((term * row.mask).sum() for row, term in zip(rows, terms)) / sum(row.mask.sum() for row in rows)


def sequence_mean(rows, terms):
    return sum((term * row.mask).sum() / row.mask.sum() for row, term in zip(rows, terms)) / len(rows)
