"""A crowd of requests sees which of them a server cancelled."""

import types

import grpc
import pytest

from golden.crowd import Crowd
from oracle import requests
from stemma import _proto

DONE, CANCELLED = "DONE", "CANCELLED"
Status = _proto.message_class("stemma.v1.RequestStatus")


class Cancelled(grpc.RpcError):
    def code(self):
        return grpc.StatusCode.CANCELLED


class Server:
    """Answers three requests: what a cancel says, and the states of all when they have ended. Who is not cancelled made one step."""

    def __init__(self, answer, states):
        self._answer, self._states = answer, states

    def UpdateActor(self, parts, timeout):  # as gRPC's stub names it
        if self._states[int(next(parts).update.request.request_id[-1])] == CANCELLED:
            raise Cancelled

    def CancelRequest(self, _):
        return Status(state=self._answer)

    def GetRequest(self, request):
        index = int(request.request_id[-1])
        if self._states[index] == CANCELLED:
            return Status(state=CANCELLED)
        status = Status(state=DONE, steps_applied=1)
        status.result.steps.add(step=self._states[:index + 1].count(DONE), outcome="APPLIED")
        return status

    def GetModel(self, _):
        return types.SimpleNamespace(step=self._states.count(DONE))


def crowd(answer, states):
    request = {"header": {}, "groups": requests.skeleton([(3, [2])], vocab=10, seed=1)}
    return Crowd(types.SimpleNamespace(stub=Server(answer, states)), "c", [request] * len(states))


@pytest.mark.parametrize("answer, states, order", [
    (CANCELLED, [DONE, CANCELLED, DONE], [(1, []), (0, [1]), (2, [2])]), (DONE, [DONE, DONE, DONE], [(0, [1]), (1, [2]), (2, [3])])])
def test_the_one_that_was_told_to_cancel_is_cancelled_or_was_done(answer, states, order):
    requests_at_once = crowd(answer, states)
    requests_at_once.cancels(1, after_s=0)
    for send in requests_at_once.sends():
        send()
    assert requests_at_once.order(0) == order


@pytest.mark.parametrize("answer, states", [
    (CANCELLED, [CANCELLED, DONE, DONE]), (CANCELLED, [DONE, CANCELLED, CANCELLED]), (CANCELLED, [DONE, DONE, DONE]),
    (DONE, [DONE, CANCELLED, DONE]), (DONE, [DONE, DONE, CANCELLED])])
def test_another_that_is_cancelled_is_seen_and_so_is_what_the_server_said_of_the_one(answer, states):
    requests_at_once = crowd(answer, states)
    requests_at_once.cancels(1, after_s=0)
    with pytest.raises(AssertionError, match="were cancelled, .* were answered so"):
        requests_at_once.order(0)


def test_an_update_that_nobody_cancelled_and_that_ends_as_cancelled_is_seen():
    requests_at_once = crowd(CANCELLED, [CANCELLED, CANCELLED, DONE])
    requests_at_once.cancels(1, after_s=0)
    sends = requests_at_once.sends()
    sends[1]()
    with pytest.raises(AssertionError):
        sends[0]()
