"""A worker whose --address goes for a while, as a link that is set down takes its IPv6 addresses with it. In a network of
this process alone: no other test shares it."""

import ctypes
import os

import pytest

from e2e.gang.network import CLONE_NEWNET, Unavailable, ip
from worker.rpc.played_server import PlayedServer

ADDRESS = "192.0.2.7/32"  # for documents alone: no machine has it
SHORT_S = 5  # two sessions that follow each other begin 2 s apart, and the address is looked for every 2 s


@pytest.fixture(name="server")
def _server():
    """Before anything of gRPC runs, whose threads would stay outside."""
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
            raise Unavailable(f"unshare: {os.strerror(ctypes.get_errno())}")
        ip("link", "set", "lo", "up")
        ip("addr", "add", ADDRESS, "dev", "lo")
    except Unavailable as why:
        pytest.skip(str(why))
    with PlayedServer() as server:
        yield server


def test_a_worker_waits_for_its_own_address_and_comes_back_with_it(server):
    worker, session, register = server.start("--address", ADDRESS[:-3], program="tests/fake_worker", once=False)
    assert register.address == ADDRESS[:-3]
    ip("addr", "del", ADDRESS, "dev", "lo")
    session.close()
    assert any("waits for --address, looks again every 2s" in line for line in worker.stderr)
    assert server.no_session_within(SHORT_S) and worker.poll() is None
    ip("addr", "add", ADDRESS, "dev", "lo")
    session, register = server.next_session()
    assert (register.pid, register.address) == (worker.pid, ADDRESS[:-3])
    session.close()
    for line in worker.stderr:
        assert "waits for --address" not in line, "said once, and no more when the address is there"
        if "waits for the server as a new incarnation" in line:
            break
