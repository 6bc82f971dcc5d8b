"""Updates that several clients send to one server at the same moment, an export and a cancel among them; and what the server says
afterwards of the order in which it took them."""

import threading
import time

import grpc

from e2e.errors.server import wait_for, word
from golden.pair import export, parts_of
from oracle import payload
from stemma import _proto

_PATIENCE_S = 300


def at_once(tasks):
    """Runs them in threads of their own; an exception of one is raised when all have ended."""
    failures = []

    def run(task):
        try:
            task()
        except BaseException as failure:  # of any kind: the test's thread raises it
            failures.append(failure)
    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class Crowd:
    """The requests, as dicts, by their number; `served`: the product, whose stub sends an update again until it is answered."""

    def __init__(self, served, name, requests):
        self.requests, self.exported = requests, []
        self._served, self._name = served, name
        self._parts = [parts_of(request, self._id(index)) for index, request in enumerate(requests)]
        self._answers = {}
        self._told, self._cancelled = set(), set()  # numbers: those told to cancel, and those that were in time

    def _id(self, index):
        return f"{self._name}/{index}"

    def orders(self, index):
        return payload.orders(self._parts[index])

    def step(self):
        return self._served.stub.GetModel(_proto.GetModelRequest()).step

    def sends(self):
        return [lambda index=index: self._send(index) for index in range(len(self.requests))]

    def _send(self, index):
        try:
            self._served.stub.UpdateActor(iter(self._parts[index]), timeout=_PATIENCE_S)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED and index in self._told, (index, error)

    def cancels(self, index, after_s):
        """Cancels it once it is known, after so long; what has ended by then stays as it is. The answer comes when it has ended."""
        time.sleep(after_s)
        request = _proto.CancelRequestRequest(request_id=self._id(index))

        def told():
            try:
                return self._served.stub.CancelRequest(request)
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE), error
                return None
        self._told.add(index)
        if word(wait_for(told, "a request to cancel"), "state") == "CANCELLED":
            self._cancelled.add(index)

    def exports(self, after_s):
        """Keeps (step, weights in float64)."""
        time.sleep(after_s)

        def written():
            try:
                return export(self._served.stub, self._name)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE, error
                return None
        self.exported.append(wait_for(written, "an export"))

    def _status(self, index):
        if index not in self._answers:
            self._answers[index] = self._served.stub.GetRequest(_proto.GetRequestRequest(request_id=self._id(index)))
        return self._answers[index]

    def was_cancelled(self, index):
        return word(self._status(index), "state") == "CANCELLED"

    def order(self, begin):
        """[(number, the model's steps that it made)] in the order of the steps, of which the first is begin + 1. A request that was
        cancelled does not say which it made, only how many: they are those that no other made. Those are cancelled of which the server said so
        when it was told to, and no other."""
        cancelled = {index for index in range(len(self.requests)) if self.was_cancelled(index)}
        assert cancelled == self._cancelled, f"{cancelled} were cancelled, {self._cancelled} were answered so"
        made = {}
        for index in range(len(self.requests)):
            status = self._status(index)
            assert word(status, "state") in ("DONE", "CANCELLED"), status
            if index not in cancelled:
                made[index] = [step.step for step in status.result.steps if word(step, "outcome") == "APPLIED"]
                assert len(made[index]) == status.steps_applied, status
        rest = set(range(begin + 1, self.step() + 1)).difference(*made.values())
        for index in cancelled:
            made[index] = sorted(rest)
            assert len(rest) == self._status(index).steps_applied, (rest, self._status(index))
        assert sorted(sum(made.values(), [])) == list(range(begin + 1, self.step() + 1)), made
        return sorted(made.items(), key=lambda item: item[1] or [begin])
