"""What the server refuses at start: exit 2, naming the file and the field; every problem at once."""

import functools
import json
import os
import resource
import secrets
import shutil
import struct
import subprocess

import grpc
import pytest

from good_request import Request, refusal
from server import BUILD, MODEL, PATIENCE_S, Cluster, start, wait_for, write_secret
from stemma import _proto


def model_copy(tmp_path):
    path = tmp_path / "model"
    shutil.copytree(MODEL, path)
    for file in path.iterdir():
        file.chmod(0o644)
    return path


def test_a_good_configuration_is_checked_and_says_ok(tmp_path):
    assert start(tmp_path, "--model", str(MODEL), "--check-config") == (0, "")
    assert not (tmp_path / "data").exists(), "a check leaves nothing behind"


def test_three_mistakes_in_run_yaml_are_three_problems(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {MODEL}\ndtype: fp8\nschedule: sometimes\nlimits:\n  grops: 3\n")
    code, text = start(tmp_path, "--config", str(config), "--check-config")
    assert code == 2
    for word in ("run.yaml", "dtype", "schedule", "grops"):
        assert word in text, text


def test_a_mesh_overrides_run_yaml_and_is_judged_with_all_else(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {MODEL}\nmesh:\n  dp: 5000\n")
    code, text = start(tmp_path, "--config", str(config), "--check-config")
    assert code == 2 and "mesh.dp" in text and "5000" in text, text
    assert start(tmp_path, "--config", str(config), "--mesh", "dp=2", "--check-config") == (0, "")
    code, text = start(tmp_path, "--config", str(config), "--mesh", "ap=2", "--dtype", "fp8", "--check-config")
    assert code == 2, text
    for word in ('--mesh: "ap=2" names no axis', "fp8"):
        assert word in text, text


def test_a_zero_overrides_run_yaml_as_any_other_number():
    numbers = {"threads": 3, "wave_suffixes": 2, "prefix_block_rows": 64}
    config = "".join(f"{name}: {number}\n" for name, number in numbers.items())
    for value, flags in ((None, ()), (0, ("0",)), (5, ("5",))):
        given = [word for name in numbers for flag in flags for word in (f"--{name.replace('_', '-')}", flag)]
        with Cluster(config=config, flags=tuple(given), worker=False) as cluster:
            running = cluster.stub.GetServerInfo(_proto.GetServerInfoRequest(), timeout=PATIENCE_S).config
            assert {name: getattr(running, name) for name in numbers} == {name: numbers[name] if value is None else value
                                                                         for name in numbers}


def test_a_run_yaml_that_is_missing_is_named(tmp_path):
    code, text = start(tmp_path, "--config", str(tmp_path / "none.yaml"), "--model", str(MODEL))
    assert code == 2 and "none.yaml" in text


@pytest.mark.parametrize("flags", [(), ("--durability", "replay")])
def test_of_a_run_yaml_that_cannot_be_read_nothing_else_is_said(tmp_path, flags):
    code, text = start(tmp_path, "--config", tmp_path, *flags)
    assert code == 2 and str(tmp_path) in text and text.count("\n") == 1, text


def test_a_secret_that_is_a_files_text_is_taken_from_the_environment():
    run = functools.partial(subprocess.run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    argv = [BUILD / "bin/stemma-server", "--model", MODEL, "--check-config"]
    for secret, code in ((secrets.token_hex(32) + "\n", 0), (secrets.token_hex(32) + "\r\n", 0), ("short\n", 2)):
        checked = run(argv, env={**os.environ, "STEMMA_WORKER_SECRET": secret})
        assert checked.returncode == code and ("STEMMA_WORKER_SECRET: a worker secret is" in checked.stderr) == (code == 2)
    refused = run([BUILD / "bin/stemma-worker", "--server", "127.0.0.1:1"], env={**os.environ, "STEMMA_WORKER_SECRET": "short"})
    assert refused.returncode == 2 and refused.stderr.startswith("stemma-worker: STEMMA_WORKER_SECRET: a worker secret is")


def test_a_limit_of_files_that_leaves_no_connection_is_refused(tmp_path):
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64))
    code, text = start(tmp_path, "--model", str(MODEL), "--ready-file", tmp_path / "ready", preexec_fn=limit)
    assert code == 2 and "may open 64 files (RLIMIT_NOFILE" in text and "raise the limit to" in text, text
    assert not (tmp_path / "ready").exists()


def test_a_closed_stderr_is_no_file_of_the_data_directory(tmp_path):
    write_secret(tmp_path / "secret")
    server = subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", BUILD / "bin/stemma-server", "--model", MODEL, "--data",
                               tmp_path / "data", "--worker-secret-file", tmp_path / "secret", "--ready-file",
                               tmp_path / "ready", "--die-with-parent"])
    try:
        address = wait_for(lambda: (tmp_path / "ready").exists() and (tmp_path / "ready").read_text().split()[0], "the ready file")
        assert (tmp_path / "data" / ".lock").read_text() == f"pid {server.pid} at {address}\n"
    finally:
        server.terminate()
        assert server.wait(PATIENCE_S) == 0
    assert (tmp_path / "data" / ".lock").read_text() == f"pid {server.pid} at {address}\n"


def test_the_ready_file_of_a_server_that_ended_goes_before_the_new_one_serves(tmp_path):
    with Cluster(worker=False) as cluster:
        (tmp_path / "ready").write_text("127.0.0.1:1\nworkers 127.0.0.1:2\nops 127.0.0.1:3\n")
        code, text = start(tmp_path, "--model", str(MODEL), "--ready-file", tmp_path / "ready", data=cluster.root / "data")
        assert code == 2 and "is in use by" in text and not (tmp_path / "ready").exists(), text


def test_a_spool_that_is_gone_is_an_error_that_names_it():
    with Cluster() as cluster:
        (cluster.root / "data" / "spool").rename(cluster.root / "spool")
        error = refusal(lambda: Request().send(cluster.stub))
        assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL"), error
        assert "data/spool is not there any more" in error.message
        (cluster.root / "spool").rename(cluster.root / "data" / "spool")
        assert Request().send(cluster.stub).result.steps[0].step == 1


def test_configuration_and_model_directory_are_reported_together(tmp_path):
    code, text = start(tmp_path, "--model", str(tmp_path / "nowhere"), "--dtype", "fp8")
    assert code == 2 and "nowhere" in text and "fp8" in text, text


def no_model(path):
    shutil.rmtree(path)


def no_config(path):
    (path / "config.json").unlink()


def truncated(path):
    weights = path / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 8)


def unknown_family(path):
    edit_config(path, model_type="mamba")


def sliding_window(path):
    edit_config(path, hidden_act="gelu")


def huge_header(path):
    weights = path / "model.safetensors"
    weights.write_bytes(struct.pack("<Q", 1 << 40) + weights.read_bytes()[8:])


def header_is_no_json(path):
    weights = path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[8:9] = b"["
    weights.write_bytes(data)


def edit_config(path, **fields):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **fields}))


@pytest.mark.parametrize("spoil, words", [
    (no_model, ["model"]), (no_config, ["config.json"]), (truncated, ["model.safetensors"]),
    (unknown_family, ["config.json", "mamba"]), (sliding_window, ["config.json", "gelu"]),
    (huge_header, ["model.safetensors"]), (header_is_no_json, ["model.safetensors"]),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_model_directory_that_cannot_run_is_named(tmp_path, spoil, words):
    path = model_copy(tmp_path)
    spoil(path)
    code, text = start(tmp_path, "--model", str(path))
    assert code == 2
    for word in words:
        assert word in text, text


def test_plaintext_beyond_loopback_needs_to_be_asked_for(tmp_path):
    code, text = start(tmp_path, "--model", str(MODEL), "--listen", "0.0.0.0:0")
    assert code == 2 and "--insecure" in text


def test_an_unknown_flag_is_a_usage_error(tmp_path):
    assert start(tmp_path, "--modle", str(MODEL))[0] == 2


def test_a_port_that_is_taken_is_a_fault(tmp_path):
    import socket
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = start(tmp_path, "--model", str(MODEL), "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 1 and "cannot listen" in text


def test_a_worker_whose_copy_of_the_model_has_another_configuration_is_refused(tmp_path):
    """The server has read config.json by then, as one on another host reads its own."""
    config = model_copy(tmp_path) / "config.json"
    before = config.read_text()
    with Cluster(model=config.parent, worker=False) as cluster:
        config.write_text(json.dumps(json.loads(before) | {"rms_norm_eps": 0.125}))
        cluster.start_worker(wait=False)
        assert cluster.worker.wait(PATIENCE_S) == 2
        assert "has loaded a model whose rms_norm_eps is not that of the server's" in cluster.said()
        config.write_text(before)
        cluster.start_worker()  # the control
