"""What an error of the client says: the steps that stay, and every field that was refused."""

import pathlib
import sys

import grpc
import pytest
import stemma
from stemma import _proto

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from client_test import run, status, update  # noqa: E402


def accepted(parts, _):
    return status(list(parts)[0].update.request.request_id, "ACCEPTED")


def failure_of(code, reason, message, applied, total, **fields):
    """The error of a request that was accepted and failed."""
    def get_request(request, _):
        out = status(request.request_id, "FAILED", steps_applied=applied, steps_total=total)
        failure = {"code": code.value[0], "reason": reason, "message": message, **fields}
        out.failure.CopyFrom(_proto.message_class("stemma.v1.Failure")(**failure))
        return out

    with pytest.raises(stemma.StemmaError) as error:
        run({"UpdateActor": accepted, "GetRequest": get_request}, update, retries=0)
    return error.value


def test_a_failure_says_which_steps_were_applied_before_it():
    message = "the gradient is not finite; nothing of this step was applied"
    later = failure_of(grpc.StatusCode.FAILED_PRECONDITION, "NONFINITE_GRADIENT", message, 1, 3)
    assert later.message == f"{message}; 1 of 3 steps of the request were applied before" and later.message in str(later)
    assert (later.metadata["steps_applied"], later.metadata["steps_total"]) == ("1", "3")
    first = failure_of(grpc.StatusCode.FAILED_PRECONDITION, "NONFINITE_GRADIENT", message, 0, 3)
    assert first.message == message and first.metadata["steps_applied"] == "0"


@pytest.mark.parametrize("reason, message", [
    ("INTERNAL", "worker lost; 1 of 3 steps are applied and stay; send the others under a new request_id"),
    ("ROLLED_BACK", "the weights are lost")])
def test_a_failure_that_says_so_itself_or_lost_the_steps_is_left_alone(reason, message):
    error = failure_of(grpc.StatusCode.INTERNAL, reason, message, 1, 3)
    assert error.message == message and error.metadata["steps_applied"] == "1"
