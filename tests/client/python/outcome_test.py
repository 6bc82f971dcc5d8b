"""What a result says of the request: whether it was sent before, and that it is done where its log-probs are gone."""

import asyncio
import warnings

import grpc
import pytest
import stemma
from stemma import verl

from client_test import GROUPS, finished, results_stream, run, status, update
from fake_server import abort
from waiting_test import preparing

GONE = "the log-probs of request r are no longer kept"


def expired(_, context):
    abort(context, grpc.StatusCode.FAILED_PRECONDITION, GONE, "REQUEST_ID_EXPIRED")


def of_update(client):
    return client.update_actor(GROUPS, stemma.grpo(), stemma.adamw(1e-6), request_id="r", return_log_probs=True)


def of_attach(client):
    return client.attach("r", log_probs=True).result()


def of_await(client):
    async def wait():
        return await client.attach("r", log_probs=True)
    return asyncio.run(wait())


DONE = {"UpdateActor": lambda *_: finished("r"), "GetRequest": lambda *_: finished("r")}


@pytest.mark.parametrize("call", [of_update, of_attach, of_await])
def test_a_result_whose_log_probs_are_gone_is_there_without_them_and_says_so(call):
    """As an error it would look as if nothing had been trained."""
    with pytest.warns(RuntimeWarning, match=f"request r is DONE, .* do not send it again.*{GONE}") as told:
        result = run({**DONE, "ReadResults": expired}, call)
    assert result.log_probs is None and [step.outcome for step in result.steps] == ["APPLIED"]
    assert result.warnings == [str(told[0].message)] and str(told[0].message) in repr(result)
    if call is not of_await:
        assert told[0].filename == __file__, "the line that asked is the one that is named"


@pytest.mark.parametrize("call", [of_update, of_attach, of_await])
def test_any_other_failure_to_read_log_probs_is_an_error(call):
    def refuse(_, context):
        abort(context, grpc.StatusCode.FAILED_PRECONDITION, "its weights are lost", "ROLLED_BACK")

    with pytest.raises(stemma.LineageLostError, match="its weights are lost"):
        run({**DONE, "ReadResults": refuse}, call)
    with pytest.raises(stemma.StemmaError, match="REQUEST_ID_EXPIRED"):
        run({"ReadResults": expired}, lambda c: c.read_log_probs("r"))


def test_log_probs_that_are_gone_cannot_be_padded():
    with pytest.raises(ValueError, match=r"^log_probs is None: the update did not ask for them \(return_log_probs=True\), or they are no"):
        verl.padded_log_probs(None, data=None)


def test_log_probs_that_are_kept_come_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run({**DONE, "ReadResults": results_stream}, of_update)
    assert result.log_probs and not result.warnings


@pytest.mark.parametrize("sent_before", [True, False])
@pytest.mark.parametrize("answers", [[finished], [preparing, finished]], ids=["done", "open"])
def test_a_result_says_whether_its_request_was_sent_before(sent_before, answers):
    """Only the answer to UpdateActor says it: GetRequest, which is asked afterwards, sends nothing."""
    waiting = list(answers[1:])

    def first(*_):
        out = answers[0]("r")
        out.replayed = sent_before
        return out

    handlers = {"UpdateActor": first, "GetRequest": lambda *_: waiting.pop(0)("r")}
    assert run(handlers, lambda c: update(c, request_id="r")).replayed is sent_before


def test_a_status_says_so_too():
    def first(*_):
        return status("r", "ACCEPTED", replayed=True)

    def call(client):
        future = update(client, wait=False, request_id="r")
        assert future.status["replayed"]
        future.done()
        assert future.status["state"] == "PREPARING" and future.status["replayed"]
        future.cancel()
        assert future.status["state"] == "CANCELLED" and future.status["replayed"]

    run({"UpdateActor": first, "GetRequest": lambda *_: preparing("r"), "CancelRequest": lambda *_: status("r", "CANCELLED")}, call)
