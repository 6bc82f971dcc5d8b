"""An export whose answer was lost, against a server in this process."""

import copy
import json
import os
import pathlib
import pickle
import sys

import grpc
import pytest
import stemma
from stemma import _proto

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from fake_server import FakeServer, abort  # noqa: E402

Written, Model = (_proto.message_class(f"stemma.v1.{name}") for name in ("ExportWeightsResponse", "ModelInfo"))
MINE = {"name": "a", "path": "/data/exports/a", "lineage": "L1", "step": "3", "dtype": ""}


class Losing:
    """A server that loses the first answer, with `reason`, and then answers what there is of the name: metadata of
    EXPORT_EXISTS one after the other, or None, where it writes the export."""

    def __init__(self, *answers, reason=""):
        self.calls, self._answers, self._reason = 0, list(answers), reason

    def export(self, name="a", dtype=None, **options):
        handlers = {"ExportWeights": self._export, "GetModel": lambda *_: Model(lineage="L1", step=3, weight_version=4)}
        with FakeServer(handlers) as server, stemma.Client(server.address, retry_delay_s=0.01, **options) as client:
            out = client.export(name, dtype)
            self.lineage, self.step = client.lineage, client._step
            return out

    def _export(self, request, context):
        self.calls += 1
        if self.calls == 1 and self._reason is not None:
            abort(context, grpc.StatusCode.UNAVAILABLE, "gone", self._reason)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            return Written(path="/data/exports/b", lineage="L1", step=3, weight_version=4, bytes=99)
        abort(context, grpc.StatusCode.ALREADY_EXISTS, "there", "EXPORT_EXISTS", metadata=answer)


def test_an_export_whose_answer_was_lost_is_found():
    server = Losing(MINE)
    assert server.export() == "/data/exports/a" and server.calls == 2
    assert Losing({**MINE, "dtype": "bfloat16"}).export(dtype="bfloat16") == "/data/exports/a"


def test_one_that_is_still_being_written_is_waited_for():
    pending = {"name": "a", "path": "/data/exports/a", "pending": "true"}
    assert Losing(pending, pending, MINE).export() == "/data/exports/a"
    assert Losing(pending, None).export() == "/data/exports/b", "the try that wrote it failed"
    with pytest.raises(stemma.StemmaError, match="EXPORT_EXISTS"):
        Losing(pending).export(recovery_timeout_s=0.1)


@pytest.mark.parametrize("change", [{"lineage": "L0"}, {"step": "2"}, {"dtype": "float32"}, None])
def test_another_one_of_the_name_is_a_clash(change):
    """None: the server does not know what it is, since it was started again."""
    known = {"name": "a", "path": "/data/exports/a"} if change is None else {**MINE, **change}
    with pytest.raises(stemma.StemmaError, match="EXPORT_EXISTS"):
        Losing(known).export()


@pytest.mark.parametrize("reason", [None, "STARTING"])
def test_a_clash_without_a_loss_is_never_hidden(reason):
    """None: the first answer comes. A server that starts has written nothing."""
    with pytest.raises(stemma.StemmaError, match="EXPORT_EXISTS"):
        Losing(MINE, reason=reason).export()


@pytest.mark.parametrize("answer, path, num_bytes", [(None, "/data/exports/b", 99), (MINE, "/data/exports/a", None)],
                         ids=["answered", "found again"])
def test_an_export_is_its_path_and_says_what_was_written(answer, path, num_bytes):
    """By its step and weight_version one knows which weights a rollout engine has."""
    server = Losing(answer)
    export = server.export()
    assert (server.lineage, server.step) == ("L1", 3), "which the client is held to from now on"
    assert isinstance(export, stemma.Export) and isinstance(export, str) and export == path and os.path.basename(export) == path[-1]
    assert json.dumps(export) == json.dumps(path) and str(pathlib.Path(export)) == path
    for same in (export, pickle.loads(pickle.dumps(export)), copy.deepcopy(export)):
        assert (same, same.step, same.weight_version, same.lineage, same.bytes) == (path, 3, 4, "L1", num_bytes)
        assert type(same) is stemma.Export
