"""D1, D3: what a start may touch, and which addresses it takes. The ready file is written by rename once the server serves,
replaces nothing that another wrote, and goes with the server; addresses are read by a real parser."""

import os
import signal
import subprocess

import pytest

from e2e.errors.server import BUILD, MODEL, Cluster, start, wait_for

GOOD = ("--model", MODEL)


def precious_file(path):
    path.write_text("precious\n")


def empty_folder(path):
    path.mkdir()


def link(path):
    (path.parent / "elsewhere").write_text("127.0.0.1:1\n")
    path.symlink_to(path.parent / "elsewhere")


def fifo(path):
    os.mkfifo(path)


@pytest.mark.parametrize("make", [precious_file, empty_folder, link, fifo], ids=lambda make: make.__name__)
@pytest.mark.parametrize("flags", [GOOD, ("--model", "nowhere"), (*GOOD, "--dtype", "fp8")], ids=["good", "no model", "dtype"])
def test_d1_what_is_not_a_ready_file_stays_as_it_is_and_refuses_the_start(tmp_path, make, flags):
    path = tmp_path / "ready"
    make(path)
    before = os.lstat(path)
    code, text = start(tmp_path, *flags, "--ready-file", path)
    assert code == 2 and "--ready-file" in text and str(path) in text, text
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode, before.st_mtime_ns) == (after.st_ino, after.st_mode, after.st_mtime_ns)


def test_d1_the_file_of_a_server_that_was_killed_goes_though_the_next_start_fails(tmp_path):
    (tmp_path / "ready").write_text("127.0.0.1:1\nworkers 127.0.0.1:2\nops 127.0.0.1:3\n")
    assert start(tmp_path, "--model", "nowhere", "--check-config", "--ready-file", tmp_path / "ready")[0] == 2
    assert (tmp_path / "ready").exists(), "a check of the configuration changes nothing"
    assert start(tmp_path, "--model", "nowhere", "--ready-file", tmp_path / "ready")[0] == 2
    assert not (tmp_path / "ready").exists(), "whoever looks there would take a server for running"


def test_d1_a_folder_that_is_not_there_refuses_the_start(tmp_path):
    code, text = start(tmp_path, *GOOD, "--ready-file", tmp_path / "no" / "ready")
    assert code == 2 and "cannot be written" in text, text


def test_d1_f12_the_ready_file_is_there_while_the_server_is_and_only_its_own_goes(tmp_path):
    with Cluster(worker=False) as cluster:
        path = cluster.root / "ready"
        code, text = start(tmp_path, *GOOD, "--ready-file", path)
        assert code == 2 and "of a server that runs" in text, text
        cluster.server.send_signal(signal.SIGTERM)
        cluster.server.wait(60)
        assert not path.exists()
    with Cluster(worker=False) as cluster:
        path = cluster.root / "ready"
        path.unlink()
        path.write_text("another's\n")
        cluster.server.send_signal(signal.SIGTERM)
        assert cluster.server.wait(60) == 0
        assert path.read_text() == "another's\n"


def test_d1_the_file_of_a_server_that_was_killed_is_replaced_by_the_next():
    with Cluster(worker=False) as cluster:
        path = cluster.root / "ready"
        cluster.server.kill()
        cluster.server.wait()
        stale = os.stat(path).st_mtime_ns
        server = subprocess.Popen(cluster._argv, stderr=cluster.log)
        try:
            wait_for(lambda: path.exists() and os.stat(path).st_mtime_ns != stale, "the next one's addresses")
        finally:
            server.kill()
            server.wait()
        assert [p.name for p in cluster.root.iterdir() if p.name.startswith(".ready")] == []


@pytest.mark.parametrize("option", ["--listen", "--worker-listen", "--ops-listen", "--metrics-listen"])
@pytest.mark.parametrize("address, why", [
    ("127.0.0.1:99999", "no port from 0 to 65535"), ("127.0.0.1", "no port"), ("", "is empty"),
    ("127.evil.example:7070", "--insecure"), ("localhost.evil.example:7070", "--insecure"), ("0.0.0.0:0", "--insecure"),
    ("[::]:0", "--insecure"), ("::1", "needs brackets"), ("unix:/run/stemma", "not supported"), (":7070", "has no host"),
])
def test_d3_an_address_that_is_none_or_reaches_too_far_is_refused(tmp_path, option, address, why):
    code, text = start(tmp_path, *GOOD, option, address)
    assert code == 2 and option in text and why in text, text
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("option, value, says", [
    ("--log-level", "loud", 'not one of debug, error, info, warning'), ("--log-level", "1", 'not one of debug, error'),
    ("--log-format", "xml", 'not one of json, text'), ("--schedule", "fast", 'not one of auto, dense, reuse'),
    ("--offload", "yes", 'not one of off, on'), ("--threads", "-1", 'not a whole number from 0 to 4294967295'),
    ("--wave-suffixes", "4294967296", 'not a whole number from 0'), ("--prefix-block-rows", "1e3", 'not a whole number'),
    ("--drain-timeout", "86401", 'not a whole number from 0 to 86400')])
def test_d2_an_option_that_is_wrong_quotes_what_was_given_and_says_what_is_taken(tmp_path, option, value, says):
    code, text = start(tmp_path, *GOOD, option, value)
    assert code == 2 and f'{option}: "{value}" is {says}' in text and len(text.splitlines()) == 1, text
    if option in ("--log-level", "--log-format", "--threads"):
        worker = subprocess.run([BUILD / "bin/stemma-worker", "--server", "127.0.0.1:1", option, value], capture_output=True,
                                text=True, timeout=60)
        assert worker.returncode == 2 and f'{option}: "{value}" is {says}' in worker.stderr, worker.stderr


def test_d3_metrics_on_ipv6_are_refused_before_anything_is_made(tmp_path):
    code, text = start(tmp_path, *GOOD, "--metrics-listen", "[::1]:0")
    assert code == 2 and "--metrics-listen [::1]:0: metrics are served on an IPv4 address" in text, text
    assert not (tmp_path / "data").exists()


def test_d3_loopback_and_port_0_are_taken_on_every_listener():
    with Cluster(worker=False, flags=("--listen", "localhost:0", "--worker-listen", "127.9.8.7:0", "--ops-listen",
                                      "127.0.0.1:0", "--metrics-listen", "localhost:0")) as cluster:
        assert cluster.address.startswith("localhost:") and cluster.worker_address.startswith("127.9.8.7:")
        assert cluster.state() == "LOADING"


def test_d3_the_worker_and_the_command_line_read_addresses_the_same_way(tmp_path):
    for program, before in (("stemma-worker", []), ("stemma", ["status"])):
        for address in ("127.0.0.1:99999", "127.0.0.1", "unix:/x", "127.0.0.1:0"):
            result = subprocess.run([BUILD / "bin" / program, *before, "--server", address], capture_output=True, text=True,
                                    timeout=60, env={**os.environ, "STEMMA_WORKER_SECRET": "0" * 64})
            assert result.returncode == 2 and f'"{address}"' in result.stderr, result.stderr


def test_f11_a_taken_port_is_one_sentence(tmp_path):
    import socket
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for option in ("--listen", "--worker-listen", "--ops-listen", "--metrics-listen"):
            code, text = start(tmp_path, *GOOD, option, f"127.0.0.1:{port}")
            why = f"stemma-server: cannot listen on 127.0.0.1 port {port}: Address already in use\n"
            assert code == 1 and text == why, text
