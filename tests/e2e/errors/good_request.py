"""A good request for the model of server.py, to be spoiled one thing at a time, and what an error says."""

import copy

import grpc

from stemma import _proto
from stemma.config import fill_message
from stemma.groups import parts as encode

HEADER = {
    "request": {"request_id": "run/0"},
    "loss": {"loss_mode": "vanilla", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0,
             "loss_agg_mode": "token-mean", "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl", "temperature": 1.0},
    "adam": {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01,
             "weight_decay_scope": "ALL", "max_grad_norm": 1.0},
    "old": {"from": "CLIENT"}, "ref": {"from": "CLIENT"}}


def group(uid, num_rollouts=2, prompt=(1, 2, 3, 4)):
    rollouts = [{"rollout_id": f"{uid}/{i}", "response_tokens": [5 + i, 6, 7], "response_mask": [1, 1, 0],
                 "old_log_probs": [-1.0, -2.0, -3.0], "ref_log_prob": [-1.5, -2.5, -3.5], "advantage": i - 0.5}
                for i in range(num_rollouts)]
    return {"uid": uid, "prompt_tokens": list(prompt), "rollouts": rollouts}


class Request:
    """header and groups are dicts in the trace's names; `parts` the messages, changed last by `spoil_parts`."""

    _next = 0

    def __init__(self, uids=("g0", "g1")):
        self.header, self.groups = copy.deepcopy(HEADER), [group(uid) for uid in uids]
        Request._next += 1
        self.header["request"]["request_id"] = f"run/{Request._next}"
        self.spoil_parts = lambda parts: parts

    @property
    def id(self):
        return self.header["request"]["request_id"]

    def rollout(self):
        return self.groups[1]["rollouts"][1]

    def rollouts(self):
        return [r for g in self.groups for r in g["rollouts"]]

    def cross_entropy(self):
        """Without what cross_entropy never reads."""
        self.header["loss"] = {"loss_mode": "cross_entropy", "loss_agg_mode": "token-mean", "temperature": 1.0}
        del self.header["old"], self.header["ref"]
        for r in self.rollouts():
            del r["advantage"], r["old_log_probs"], r["ref_log_prob"]
            r["loss_weights"] = [1.0, 1.0, 1.0]
        return self

    def old_from_rollouts(self):
        self.header["old"] = {"from": "ROLLOUT"}
        for r in self.rollouts():
            r["rollout_log_probs"] = r.pop("old_log_probs")
        return self

    def parts(self):
        header = fill_message(_proto.UpdateHeader(), copy.deepcopy(self.header))
        return self.spoil_parts(encode("update", header, self.groups))

    def send(self, stub, timeout=60):
        return stub.UpdateActor(iter(self.parts()), timeout=timeout)


class Refusal:
    """What a failed call carried."""

    def __init__(self, error):
        self.code, self.message = error.code(), error.details()
        self.reason, self.fields, self.metadata, self.retry_after_s = "", [], {}, None
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                self._read(_proto.RpcStatus.FromString(value))

    def _read(self, status):
        for detail in status.details:
            kind = detail.type_url.rpartition("/")[2]
            if kind == "google.rpc.ErrorInfo":
                info = _proto.ErrorInfo.FromString(detail.value)
                assert info.domain == "stemma"
                self.reason, self.metadata = info.reason, dict(info.metadata)
            elif kind == "google.rpc.BadRequest":
                self.fields = [v.field for v in _proto.BadRequest.FromString(detail.value).field_violations]
            elif kind == "google.rpc.RetryInfo":
                self.retry_after_s = _proto.RetryInfo.FromString(detail.value).retry_delay.seconds

    def __repr__(self):
        return f"{self.code.name} {self.reason} {self.fields}: {self.message}"


def refusal(call):
    """The error of a call that must fail."""
    try:
        answer = call()
    except grpc.RpcError as error:
        return Refusal(error)
    raise AssertionError(f"it was accepted: {answer}")
