"""docs/operate.md is true of the programs: their options and defaults, health, reflection, exit codes, the ready file."""

import pathlib
import re
import signal
import subprocess

import grpc
import pytest

from e2e.errors.server import BUILD, MODEL, Cluster, start, wait_for
from e2e.own_loopback import channel_to

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
SERVING, NOT_SERVING = 1, 2


def help_of(program):
    return subprocess.run([BUILD / "bin" / program, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def cluster():
    with Cluster(fake=True) as running:
        yield running


def health(address, service):
    """The number that grpc.health.v1 answers; its messages are one string, and one enum."""
    name = service.encode()
    with channel_to(address) as channel:
        call = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=lambda sent: sent,
                                   response_deserializer=lambda received: received)
        answer = call((b"\x0a" + bytes([len(name)]) + name) if name else b"", timeout=10)
    assert len(answer) == 2 and answer[0] == 0x08, answer
    return answer[1]


@pytest.mark.parametrize("program", ["stemma-server", "stemma-worker"])
def test_every_option_is_on_the_page(program):
    options = set(re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", help_of(program)))
    assert len(options) > 8
    assert not {option for option in options - {"--version", "--help"} if f"{option}" not in PAGE}


def test_defaults_are_those_of_the_program():
    text = help_of("stemma-server")
    for option, default in (("--drain-timeout", "20"), ("--worker-lost-after", "10"), ("--worker-stalled-after", "300"),
                            ("--data", "stemma-data")):
        assert re.search(rf"`{option}`[^.]*\(default `?{default}`?\)", PAGE), option
        assert re.search(rf"{option}\b(?:(?!\n  --).|\n)*?\(default: {default}\)", text), option


def test_health_answers_the_names_of_the_page(cluster):
    names = re.findall(r"(?m)^\| `(liveness)` |^\| `(readiness)`, `(stemma\.v1\.TrainingService)` and the empty name", PAGE)
    assert [name for row in names for name in row if name] == ["liveness", "readiness", "stemma.v1.TrainingService"]
    for name in ("liveness", "readiness", "stemma.v1.TrainingService", ""):
        assert health(cluster.ops_address, name) == SERVING, name


def test_health_knows_no_other_name_and_no_other_port(cluster):
    with pytest.raises(grpc.RpcError) as unknown:
        health(cluster.ops_address, "stemma.internal.v1.WorkerService")
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as elsewhere:
        health(cluster.address, "liveness")
    assert elsewhere.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_readiness_needs_a_worker_and_liveness_does_not():
    with Cluster(fake=True, worker=False) as alone:
        assert health(alone.ops_address, "liveness") == SERVING
        assert health(alone.ops_address, "readiness") == NOT_SERVING


def test_a_signal_ends_with_0_and_takes_the_ready_file_along():
    with Cluster(fake=True) as running:
        running.server.send_signal(signal.SIGTERM)
        assert running.server.wait(60) == 0
        assert not (running.root / "ready").exists()
        assert running.worker.wait(60) == 0  # --once: the server stopped


def test_a_configuration_that_cannot_run_ends_with_2(tmp_path):
    for flags in (["--model", tmp_path / "nothing"], ["--model", MODEL, "--listen", "127.0.0.1:99999"],
                  ["--model", MODEL, "--no-such-option"]):
        code, said = start(tmp_path, *flags)
        assert code == 2 and said, (flags, said)


def test_the_calibration_of_the_page_is_written(tmp_path):
    assert "`calibration.json`" in PAGE
    import stemma
    with Cluster(data=tmp_path / "data") as running, stemma.Client(running.address) as client:
        group = stemma.Group("g", [1, 2, 3], [stemma.Rollout([4, 5], advantage=1.0), stemma.Rollout([6], advantage=-1.0)])
        client.update_actor([group], loss=stemma.grpo(), adam=stemma.adamw(1e-3))
        running.server.send_signal(signal.SIGTERM)
        assert running.server.wait(60) == 0
    wait_for(lambda: (tmp_path / "data" / "calibration.json").exists(), "the calibration")
