"""B3: running out of file descriptors does not stop the server from accepting, and connections are capped before it."""

import concurrent.futures
import resource
import socket

import grpc
import pytest

from e2e.own_loopback import channel_to
from hostile.hostile_cluster import Cluster, Request, serves, wait_for
from stemma import _proto
from stemma._stub import TrainingStub

HARD = 160


@pytest.fixture()
def cluster():
    with Cluster(fake=True, rlimits=[f"--nofile={HARD // 2}:{HARD}"]) as running:
        yield running


def soft_limit(cluster):
    return resource.prlimit(cluster.server.pid, resource.RLIMIT_NOFILE)[0]


def connect(cluster, count, address=None):
    host, _, port = (address or cluster.address).rpartition(":")
    return [socket.create_connection((host.strip("[]"), int(port))) for _ in range(count)]


def new_client_gets_through(cluster):
    with channel_to(cluster.address) as channel:
        try:
            return TrainingStub(channel).GetModel(_proto.GetModelRequest(), timeout=5)
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), error
            return None


def test_a_server_without_descriptors_accepts_again_when_there_are_some(cluster):
    assert soft_limit(cluster) == HARD, "the soft limit is raised to the hard one at the start"
    for _ in range(2):
        flood = connect(cluster, 2 * HARD)
        wait_for(lambda: f"connections are refused: few descriptors are left of the {HARD}" in cluster.said(),
                 "descriptors to be few")
        assert cluster.model().step >= 0, "clients that are connected are served"
        for connection in flood:
            connection.close()
        wait_for(lambda: new_client_gets_through(cluster), "a new client to get through")
        serves(cluster)


def test_accepting_is_tried_again_when_the_limit_itself_is_hit(cluster):
    """The limit falls below what is open, as if files had taken all that the cap keeps free."""
    resource.prlimit(cluster.server.pid, resource.RLIMIT_NOFILE, (4, HARD))
    flood = connect(cluster, 5)
    wait_for(lambda: "Too many open files" in cluster.said(), "accepting to fail")
    resource.prlimit(cluster.server.pid, resource.RLIMIT_NOFILE, (HARD, HARD))
    wait_for(lambda: new_client_gets_through(cluster), "a new client to get through")
    for connection in flood:
        connection.close()
    serves(cluster)


def test_connections_are_capped_by_a_published_limit():
    with Cluster(fake=True, config="limits:\n  connections: 8\n") as cluster:
        limits = cluster.stub.GetServerInfo(_proto.GetServerInfoRequest()).config.limits
        assert limits.connections == 8
        flood = connect(cluster, 20)
        wait_for(lambda: "connections are refused: at most 8 are taken (limits.connections)" in cluster.said(),
                 "the cap to be reached")
        closed = [c for c in flood if is_closed(c)]
        assert 8 <= len(closed) <= 18, "a few descriptors are gRPC's own"
        for connection in flood:
            connection.close()
        wait_for(lambda: new_client_gets_through(cluster), "a new client to get through")
        assert Request().send(cluster.stub).steps_applied == 1


@pytest.mark.parametrize("listener, most", [("workers", 2 * 1 + 16), ("ops", 64)])
def test_connections_of_workers_and_probes_are_capped_each_by_itself(listener, most):
    """Nothing of theirs is taken from clients, and a place that is left is free again."""
    with Cluster(fake=True) as cluster:
        others = connect(cluster, 100)
        address, open_before = (cluster.worker_address, 1) if listener == "workers" else (cluster.ops_address, 0)
        flood = connect(cluster, most + 20, address)
        wait_for(lambda: f"{most} are open there" in cluster.said(), "the cap to be reached")
        with concurrent.futures.ThreadPoolExecutor(len(flood)) as pool:
            open_now = lambda: list(pool.map(is_closed, flood)).count(False)
            wait_for(lambda: open_now() <= most - open_before, "those beyond the cap to be closed")
            assert open_now() == most - open_before
        serves(cluster)
        for connection in flood:
            connection.close()
        wait_for(lambda: not is_closed(connect(cluster, 1, address)[0]), "a new connection to be taken")
        assert not is_closed(others[0]) and not is_closed(others[-1]), "those of clients are counted apart"


def is_closed(connection):
    """The server greets with its settings and waits, or has closed."""
    connection.settimeout(0.5)
    try:
        while True:
            if connection.recv(4096) == b"":
                return True
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
