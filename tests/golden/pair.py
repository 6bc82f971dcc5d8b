"""The product and the oracle side by side: a real server with a real worker over loopback, and float64 transformers with
autograd. Both train on the same requests from the same weights; what the product answers and exports is compared.
"""

import copy
import dataclasses
import itertools
import os
import shutil

import torch
from safetensors.torch import load_file

from e2e.errors.server import Cluster
from oracle import hf64, models, payload, step, training
from stemma import _proto, results
from stemma.config import fill_message
from stemma.groups import parts as encode

TINY = dict(hidden=16, layers=2, heads=4, kv_heads=2, head_size=4, ffn=24, vocab=48, positions=64)

# Each family, tied and not, and what differs in how it is computed: waves that join groups, small waves, padded ones.
MODELS = {
    "llama": (models.Spec("llama", scaled=True, seed=201, **TINY), ""),
    "qwen2_tied": (models.Spec("qwen2", tied=True, seed=202, **TINY), "wave_suffixes: 3\n"),
    "qwen3": (models.Spec("qwen3", seed=203, **{**TINY, "head_size": 8}),
              "layout: padded\nprefix_policy: s3\nsuffix_policy: s2\n"),
}

# Both sides compute in float64, and no sum has more than 1e4 terms: 1e-12 leaves 1e3 roundings of room.
FORWARD = 1e-12
# A step moves a weight by lr * m / (sqrt(v) + eps): an error of d in a gradient moves it by at most lr * d / eps. Here lr / eps is
# at most 4, so that weights agree nearly to their own rounding: 4e-15 was the worst of hundred requests.
WEIGHT = 1e-13


@dataclasses.dataclass
class Answer:
    """What one request came to, on either side."""

    outcomes: list  # by step: APPLIED, ...
    losses: list    # of the applied steps
    norms: list
    log_probs: dict  # by rollout_id; empty unless asked for
    weights: dict
    waves: list = None  # the product's: [(suffixes of each wave, groups)] of each cluster


def parts_of(request, request_id):
    """The messages of the request's UpdateActor call."""
    header = copy.deepcopy(request["header"])
    header.setdefault("request", {})["request_id"] = request_id
    return encode("update", fill_message(_proto.UpdateHeader(), header), request["groups"])


def export(stub, name):
    """(step, weights in float64) of the product, of which nothing stays on the disk."""
    answer = stub.ExportWeights(_proto.ExportWeightsRequest(name=name, dtype="float64"))
    weights = load_file(os.path.join(answer.path, "model.safetensors"))
    shutil.rmtree(answer.path)
    return answer.step, weights


def _applied(history, field):
    return [getattr(outcome, field) for outcome in history if outcome.outcome == "APPLIED"]


class Pair:
    """`serve`: starts the product on a model directory; what it returns has a `stub`, and close()."""

    def __init__(self, spec, scratch, serve):
        self.spec = spec
        self.directory = models.make(os.path.join(str(scratch), "model"), spec)
        self.trainer = training.Trainer(hf64.Hf64(self.directory))
        self.cluster = serve(self.directory)
        self._numbers = itertools.count(1)

    @property
    def model(self):
        """The oracle's, at the weights that both sides have now."""
        return self.trainer.model

    def close(self):
        self.cluster.close()

    def product(self, request, afterwards=lambda: None):
        """Sends the request; (Answer, the messages that were sent). `afterwards` is called between its answer and the export of the
        weights."""
        number = next(self._numbers)
        parts = parts_of(request, f"golden/{number}")
        status = self.cluster.stub.UpdateActor(iter(parts), timeout=300)
        result = results.update_result(status)
        log_probs = {}
        if request["header"].get("return_log_probs"):
            stream = self.cluster.stub.ReadResults(_proto.ReadResultsRequest(request_id=status.request_id))
            log_probs = {name: torch.tensor(list(answer.log_probs), dtype=torch.float64)
                         for name, answer in results.log_probs(stream).items() if len(answer.log_probs)}
        steps = [step for step in result.steps if step.outcome == "APPLIED"]
        waves = [(cluster["wave_sizes"], cluster.get("reuse_uids", []) + cluster.get("dense_uids", []))
                 for step in result.plan["steps"] for cluster in step.get("clusters", [])]
        afterwards()
        answer = Answer([step.outcome for step in result.steps], [step.metrics["actor/loss"] for step in steps],
                        [step.metrics["actor/grad_norm"] for step in steps], log_probs, self.exported(f"w{number}"), waves)
        return answer, parts

    def product_log_probs(self, groups, temperature, schedule):
        """({rollout_id: log-probs}, {rollout_id: entropies}) of the current weights, by ComputeLogProb."""
        header = fill_message(_proto.LogProbHeader(), {
            "request": {"request_id": f"golden/{next(self._numbers)}", "schedule": schedule}, "weights": "policy",
            "temperature": temperature, "entropy": True})
        stream = self.cluster.stub.ComputeLogProb(iter(encode("log_prob", header, groups)), timeout=300)
        answers = [answer for answer in results.log_probs(stream).values() if len(answer.log_probs)]
        return tuple({answer.rollout_id: torch.tensor(list(values(answer)), dtype=torch.float64) for answer in answers}
                     for values in (lambda answer: answer.log_probs, lambda answer: answer.entropy))

    def oracle_log_probs(self, groups, temperature):
        """As product_log_probs, of the oracle."""
        found = {}
        for row in step.rows_of({"groups": groups}):
            if row.response:
                with torch.no_grad():
                    logits = self.model.logits(row.prompt, row.response)
                    found[row.id] = hf64.log_probs_and_entropy(logits, row.response, temperature)
        return tuple({name: both[index] for name, both in found.items()} for index in (0, 1))

    def oracle(self, request, orders, rules=training.Rules()):
        """Trains the oracle on the request; its Answer."""
        history = self.trainer.update(request, orders, rules)
        log_probs = {}
        if request["header"].get("return_log_probs"):
            for outcome in history:
                if outcome.epoch == 0:
                    log_probs.update(outcome.log_probs)
        return Answer([outcome.outcome for outcome in history], _applied(history, "loss"), _applied(history, "norm"),
                      log_probs, self.trainer.weights())

    def adopt(self, weights):
        """Goes on from the product's weights, which were held against the oracle's: roundings do not add up over requests."""
        _, optimizer = self.trainer.snapshot()
        self.trainer.restore((weights, optimizer))

    def exported(self, name):
        """The product's weights in float64."""
        return export(self.cluster.stub, name)[1]

    def send(self, request, afterwards=lambda: None):
        """Both sides train on it: (product's Answer, oracle's Answer). `afterwards`: see product()."""
        answer, parts = self.product(request, afterwards)
        return answer, self.oracle(request, payload.orders(parts))


def _relative(actual, expected):
    if len(actual) != len(expected):
        return float("inf")
    return max((abs(a - e) / max(1.0, abs(e)) for a, e in zip(actual, expected)), default=0.0)


def tensor_deviation(actual, expected):
    """The largest difference; infinite where names differ."""
    if actual.keys() != expected.keys():
        return float("inf")
    return max(((actual[name] - value).abs().max().item() for name, value in expected.items()), default=0.0)


def deviations(actual, expected):
    """By what is compared: the worst deviation in units of its tolerance; 1 is the limit."""
    found = {
        "outcomes": 0.0 if actual.outcomes == expected.outcomes else float("inf"),
        "loss": _relative(actual.losses, expected.losses) / FORWARD,
        "gradient norm": _relative(actual.norms, expected.norms) / FORWARD,
        "log-probs": tensor_deviation(actual.log_probs, expected.log_probs) / FORWARD,
        "weights": tensor_deviation(actual.weights, expected.weights) / WEIGHT,
    }
    return {what: float("inf") if value != value else value for what, value in found.items()}


class Pairs:
    """One pair per model. A pair whose two sides have parted is replaced: its next request starts afresh."""

    def __init__(self, scratch):
        self._scratch, self._pairs, self._count = scratch, {}, itertools.count()

    def get(self, name):
        if name not in self._pairs:
            spec, config = MODELS[name]
            self._pairs[name] = Pair(spec, self._scratch / f"{name}-{next(self._count)}",
                                     lambda directory: Cluster(config="dtype: fp64\n" + config, model=directory))
        return self._pairs[name]

    def agree(self, name, request):
        """Sends the request to both sides and holds them against each other; the product's Answer."""
        pair = self.get(name)
        try:
            actual, expected = pair.send(request)
            found = deviations(actual, expected)
            pair.adopt(actual.weights)
            assert max(found.values()) <= 1, f"in units of the tolerance: {found}\n{actual.outcomes}, {expected.outcomes}"
        except BaseException:
            self.discard(name)
            raise
        return actual

    def discard(self, name):
        if name in self._pairs:
            self._pairs.pop(name).close()

    def close(self):
        for name in list(self._pairs):
            self.discard(name)
