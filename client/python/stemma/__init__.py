"""Stemma's Python client: send prompt groups, get optimizer steps, log-probs and weights back."""

from . import trace, verl
from ._bound import Bound, bound
from ._export_calls import Export
from ._schedules import constant, cosine, linear
from ._tls import Tls
from ._verify_calls import ParameterError, Verification
from .client import Client, Future
from .config import (AdamW, LossConfig, adamw, cispo, cross_entropy, dapo, dr_grpo, grpo, gspo, importance_sampling,
                     reinforce)
from .errors import LineageLostError, RequestInterrupted, StemmaError
from .groups import Group, Rollout
from .local import LocalServer
from .results import Checkpoint, LoadedCheckpoint, RolloutLogProbs, StepResult, UpdateResult

__all__ = ["AdamW", "Bound", "Checkpoint", "Client", "Export", "Future", "Group", "LineageLostError", "LoadedCheckpoint",
           "LocalServer", "LossConfig", "ParameterError", "RequestInterrupted", "Rollout", "RolloutLogProbs", "StemmaError",
           "StepResult", "Tls", "UpdateResult", "Verification", "adamw", "bound", "cispo", "constant", "cosine", "cross_entropy", "dapo",
           "dr_grpo", "grpo", "gspo", "importance_sampling", "linear", "reinforce", "trace", "verl"]
__version__ = "0.1.0"
