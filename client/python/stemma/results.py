"""What comes back, as plain Python data."""

import collections
import dataclasses
from typing import Any, Dict, List, Optional

from . import _arrays, _proto


# Metrics that a repr shows, of the many that there are.
_SHOWN = ("actor/loss", "actor/grad_norm", "actor/entropy", "actor/kl_loss", "prefix/token_ratio")


@dataclasses.dataclass(repr=False)
class StepResult:
    """One optimizer step.

    step            the model's step after it
    weight_version  of the weights after it
    attempts        how often it was prepared; above 1 where a worker was lost
    outcome         "APPLIED", "SKIPPED_NONFINITE", "SKIPPED_EMPTY"
    epoch           of the request, from 0
    num_groups      of its mini-batch
    metrics         by name; docs/metrics.md lists them
    warnings        what of the mini-batch was not computed, and why
    trace           what each worker did when, as a dict of StepTrace
                    (proto/stemma/v1/step_trace.proto; docs/parallelism.md says what it shows), where trace_step names this step;
                    else None
    """

    step: int
    weight_version: int
    attempts: int
    outcome: str
    epoch: int
    num_groups: int
    metrics: Dict[str, float]
    warnings: List[str] = dataclasses.field(default_factory=list)
    trace: Optional[Dict[str, Any]] = None

    def __repr__(self):
        return f"StepResult(step {self.step} {self.outcome}, {self.num_groups} groups{_shown(self.metrics)})"


@dataclasses.dataclass(repr=False)
class RolloutLogProbs:
    """Log-probs of one response.

    rollout_id  its id in the request
    log_probs   array.array, one for each response token
    entropy     array.array, one for each response token; empty unless asked for
    lineage     of the weights that gave these numbers
    """

    rollout_id: str
    log_probs: Any
    entropy: Any
    lineage: str = ""

    def __repr__(self):
        mean = f", mean {sum(self.log_probs) / len(self.log_probs):.4g}" if len(self.log_probs) else ""
        return f"RolloutLogProbs({self.rollout_id!r}, {len(self.log_probs)} log-probs{mean})"


@dataclasses.dataclass
class Checkpoint:
    """A saved training state.

    name                its name
    path                of its folder on the server's machine: a Hugging Face model, with optim/ beside it
    lineage, step       of the weights
    weight_version      of the weights
    dtype               of the run that saved it
    weights_digest      of the weights, 64 characters: "2:", the way in which it is made, and 62 hexadecimal digits. Without a
                        mark it was made in an earlier way, and says nothing of one that has it
    bytes               of all its files
    saved_at_s          seconds since 1970, UTC, by the server's clock, and later than any other's that it knew then
    pinned              whether it stays until it is deleted by name
    damage              what was found wrong with it; "": nothing
    client_state_bytes  of what the client saved with it
    """

    name: str
    path: str
    lineage: str
    step: int
    weight_version: int
    dtype: str
    weights_digest: str
    bytes: int
    saved_at_s: float
    pinned: bool
    damage: str
    client_state_bytes: int


@dataclasses.dataclass
class LoadedCheckpoint:
    """What load_checkpoint leads to.

    checkpoint      the Checkpoint
    client_state    bytes, as they were saved with it
    lineage, step   of the model from now on
    weight_version  of the model from now on
    """

    checkpoint: Checkpoint
    client_state: bytes
    lineage: str
    step: int
    weight_version: int


def checkpoint(message):
    """The Checkpoint of a message."""
    return Checkpoint(**{field.name: getattr(message, field.name) for field in dataclasses.fields(Checkpoint)})


@dataclasses.dataclass(repr=False)
class UpdateResult:
    """The outcome of an update.

    request_id  of the request
    steps       a StepResult for each optimizer step
    metrics     over the steps, by name: "actor/loss", "actor/grad_norm", ...; docs/metrics.md lists them
    effective   the header as it was accepted, as a dict, with what was left to the server: its schedule, "ABORT", all groups, one epoch
    plan        what ran, as a dict of PlanReport (proto/stemma/v1/plan.proto): waves, tokens, FLOPs, bytes
    warnings    of the request
    lineage     of the weights that were trained; another one when those are lost
    replayed    whether an earlier call had sent this id and payload: this is its outcome, whether that was there already or the
                request was still open. A try of this call's own whose answer was lost counts as one
    log_probs   {rollout_id: RolloutLogProbs} with return_log_probs; a rollout without an unmasked token has none. None: not asked
                for, or no longer kept when they were read, as `warnings` then says. The server keeps those of its newest requests
                in memory, 1 GiB with their traces, until it ends
    """

    request_id: str
    steps: List[StepResult]
    metrics: Dict[str, float]
    effective: Dict[str, Any]
    plan: Dict[str, Any]
    warnings: List[str]
    lineage: str
    replayed: bool
    log_probs: Optional[Dict[str, RolloutLogProbs]] = None

    def __repr__(self):
        outcomes = collections.Counter(step.outcome for step in self.steps)
        counted = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        last = f" to step {self.steps[-1].step}" if self.steps else ""
        more = f"; warnings: {self.warnings}" if self.warnings else ""
        return (f"UpdateResult({self.request_id!r}{', replayed' if self.replayed else ''}, steps: {counted or 'none'}{last}"
                f"{_shown(self.metrics)}{more})")


def _shown(metrics):
    shown = ", ".join(f"{name} {metrics[name]:.4g}" for name in _SHOWN if name in metrics)
    return f"; {shown}; {len(metrics)} metrics" if shown else ""


def update_result(status):
    """An UpdateResult of a RequestStatus that holds one."""
    fields = _proto.to_dict(status.result)
    fields["steps"] = [StepResult(**step) for step in fields["steps"]]
    return UpdateResult(request_id=status.request_id, replayed=status.replayed, **{"effective": {}, "plan": {}, **fields})


def log_probs(stream):
    """{rollout_id: RolloutLogProbs} of a stream of GroupResult."""
    out = {}
    for message in stream:
        code = "d" if _proto.to_dict(message)["dtype"] == "FLOAT64" else "f"
        for rollout in message.rollouts:
            out[rollout.rollout_id] = RolloutLogProbs(rollout.rollout_id, _arrays.unpack(code, rollout.log_probs),
                                                      _arrays.unpack(code, rollout.entropy), message.lineage)
    return out
