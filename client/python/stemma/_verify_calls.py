"""The call of a Client that compares shared prompts with dense training, and what it leads to."""

import dataclasses
import math
from typing import Dict, List

from . import _proto, config
from ._tries import in_time
from ._update import update_parts
from .groups import as_list


@dataclasses.dataclass
class ParameterError:
    """How far the two gradients of one parameter are apart.

    name            the workers' own: fused tensors have one ("layers.0.qkv")
    error_norm      of the difference
    gradient_norm   of the dense run's gradient
    """

    name: str
    error_norm: float
    gradient_norm: float

    @property
    def error(self):
        """error_norm / gradient_norm: 0 where both are, inf where only the second is."""
        return _share(self.error_norm, self.gradient_norm)


@dataclasses.dataclass(repr=False)
class Verification:
    """What one step would be with shared prompts and with every trajectory in full. Norms are of gradients before they are clipped.

    step, lineage   of the weights that both runs had
    reuse, dense    the metrics of either run, by name (docs/metrics.md): "actor/loss", "perf/actor/time_per_step", ...
    log_prob_error_max, log_prob_error_mean     |reuse - dense| of the log-probs of response tokens, in nats
    log_prob_tokens     how many were compared
    error_norm      of the difference of the gradients of all parameters
    gradient_norm   of the dense run's gradient
    parameters      a ParameterError for each, that with the largest error_norm first
    """

    step: int
    lineage: str
    reuse: Dict[str, float]
    dense: Dict[str, float]
    log_prob_error_max: float
    log_prob_error_mean: float
    log_prob_tokens: int
    error_norm: float
    gradient_norm: float
    parameters: List[ParameterError]

    @property
    def error(self):
        """error_norm / gradient_norm: 0 but for rounding; docs/verification.md says how much that is in each dtype."""
        return _share(self.error_norm, self.gradient_norm)

    @property
    def speedup(self):
        """Seconds of the dense run for each of the other."""
        return _share(self.dense["perf/actor/time_per_step"], self.reuse["perf/actor/time_per_step"])

    def __repr__(self):
        return (f"Verification(step {self.step}: gradients {self.error:.3g} apart, log-probs {self.log_prob_error_max:.3g} "
                f"of {self.log_prob_tokens}, {self.speedup:.3g} times as fast; {len(self.parameters)} parameters)")


def _share(part, whole):
    return part / whole if whole else math.inf if part else 0.0


class VerifyCalls:
    """What Client inherits; its retries, its lineage and its stub are Client's."""

    def verify(self, groups, loss=None, adam=None, *, old="auto", ref="auto", expected_step=None, schedule=None,
               timeout_s=None) -> Verification:
        """Computes the gradient of one step twice, with shared prompts and with every trajectory in full, on the server's
        weights, mesh and dtype; returns how far the two are apart. Nothing is applied and no id is used. It waits for the
        requests that were accepted before, and takes the time of both runs.

        groups, loss, adam, old, ref    as in submit; one optimizer step of all groups. Of `adam` nothing is applied
        expected_step   refuse unless the model is at this step
        schedule    "reuse", or "auto": what training would choose for each group; None: "reuse"
        timeout_s   how long to wait for it; TimeoutError after it, and the server computes no further. None: as long as it takes
        """
        groups = as_list(groups)
        parts = update_parts(groups, loss, adam, old, ref, request=config.without_none({
            "request_id": config.new_id(), "expected_step": expected_step, "schedule": schedule}))
        self._pin(parts[0].update.request)
        with in_time(timeout_s, "a verification") as deadline:
            answer = self._sent(parts, groups, lambda timeout=None: self._stub.VerifyGroup(iter(parts), timeout=timeout), deadline)
        self._saw(answer.lineage, answer.step)
        return _verification(answer)


def _verification(message):
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(Verification)}
    fields["reuse"], fields["dense"] = dict(message.reuse.metrics), dict(message.dense.metrics)
    fields["parameters"] = [ParameterError(p.name, p.error_norm, p.gradient_norm) for p in message.parameters]
    return Verification(**fields)
