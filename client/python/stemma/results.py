"""What comes back, as plain Python data."""

import dataclasses
from typing import Any, Dict, List, Optional

from . import _proto, groups


@dataclasses.dataclass
class StepResult:
    step: int                   # the model's step after it
    weight_version: int
    attempts: int
    outcome: str                # APPLIED, SKIPPED_NONFINITE, SKIPPED_EMPTY
    epoch: int
    num_groups: int
    metrics: Dict[str, float]
    warnings: List[str]         # what of the mini-batch was not computed, and why


@dataclasses.dataclass
class RolloutLogProbs:
    rollout_id: str
    log_probs: Any              # array.array, one for each response token; empty: the rollout was not run
    entropy: Any                # array.array, empty unless asked for
    lineage: str = ""           # of the weights that gave these numbers


@dataclasses.dataclass
class UpdateResult:
    request_id: str
    steps: List[StepResult]
    metrics: Dict[str, float]   # over the steps: "actor/loss", "actor/grad_norm", ...
    effective: Dict[str, Any]   # the header that was in force
    plan: Dict[str, Any]
    warnings: List[str]
    lineage: str                # of the weights that were trained; another one when those are lost
    replayed: bool              # the stored outcome of an earlier call with this id and payload
    log_probs: Optional[Dict[str, RolloutLogProbs]] = None  # by rollout_id, with return_log_probs


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
            out[rollout.rollout_id] = RolloutLogProbs(rollout.rollout_id, groups.unpack(code, rollout.log_probs),
                                                      groups.unpack(code, rollout.entropy), message.lineage)
    return out
