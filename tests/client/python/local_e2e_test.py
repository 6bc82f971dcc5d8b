"""The client against real processes: `stemma local` on a small random model."""

import contextlib
import fcntl
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest
import stemma

BIN = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "bin"
VOCAB = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    subprocess.run([BIN / "stemma", "model", "init", path, "--family", "qwen3", "--hidden", "32", "--layers", "2",
                    "--heads", "4", "--kv-heads", "2", "--head-size", "8", "--ffn", "48", "--vocab", str(VOCAB),
                    "--max-positions", "128", "--seed", "1"], check=True)
    return path


@pytest.fixture
def client(model):
    with stemma.LocalServer(model, binary=BIN / "stemma", threads=1) as server, stemma.Client(server.address) as client:
        yield client


def some_groups():
    return [stemma.Group(f"g{g}", [(3 * i + g) % VOCAB for i in range(12)], [
        stemma.Rollout([(i * r + g) % VOCAB for i in range(5 + r)], reward=float(r % 2)) for r in range(4)])
        for g in range(3)]


def test_a_step_changes_the_weights_and_the_log_probs(client):
    groups = some_groups()
    before = client.log_probs(groups)
    result = client.update_actor(groups, loss=stemma.grpo(), adam=stemma.adamw(1e-2), old="policy", schedule="reuse")
    after = client.log_probs(groups)
    assert [s.outcome for s in result.steps] == ["APPLIED"] and result.steps[0].step == 1
    assert client.model()["step"] == 1 and result.metrics["actor/grad_norm"] > 0
    assert result.metrics["prefix/tokens_computed"] < result.metrics["prefix/tokens_logical"]
    assert before.keys() == after.keys() == {f"g{g}/{r}" for g in range(3) for r in range(4)}
    assert all(len(before[f"g{g}/{r}"].log_probs) == 5 + r for g in range(3) for r in range(4))
    assert before["g0/1"].log_probs != after["g0/1"].log_probs


def test_log_probs_of_a_random_model_are_near_uniform(client):
    out = client.log_probs(some_groups(), entropy=True)
    for rollout in out.values():
        assert all(abs(x + math.log(VOCAB)) < 1.0 for x in rollout.log_probs)  # weights of 0.02 give logits near 0
        assert all(0.8 * math.log(VOCAB) < h <= math.log(VOCAB) + 1e-5 for h in rollout.entropy)


def test_what_ends_the_wait_for_a_server_ends_the_server(model, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    begun, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: begun.append(popen(*args, **options)) or begun[-1])
    monkeypatch.setattr(stemma.LocalServer, "_wait_until_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stemma.LocalServer(model, binary=BIN / "stemma", threads=1)
    assert begun[0].poll() is not None


@pytest.mark.parametrize("named, durability, kept", [(False, None, False), (False, "replay", True), (True, None, True),
                                                     (True, "rewind", False)])
def test_a_request_is_kept_where_something_may_go_on_with_it(model, tmp_path, named, durability, kept):
    with stemma.LocalServer(model, binary=BIN / "stemma", threads=1, data=tmp_path if named else None,
                            durability=durability) as server, stemma.Client(server.address) as client:
        client.update_actor(some_groups(), loss=stemma.grpo(), adam=stemma.adamw(1e-2), old="on_policy")
        assert any((server.data / "spool").iterdir()) == kept


def test_mini_batches_and_epochs_are_steps_and_log_probs_come_back(client):
    groups = some_groups()
    result = client.update_actor(groups, loss=stemma.grpo(), adam=stemma.adamw(1e-3), old="policy", mini_batch=1,
                                 epochs=2, shuffle=True, seed=7, return_log_probs=True)
    assert [s.step for s in result.steps] == [1, 2, 3, 4, 5, 6]
    assert len(result.log_probs) == 12


def test_a_rollout_without_an_unmasked_token_has_no_log_probs(client):
    groups = some_groups()
    masked = groups[0].rollouts[1]
    masked.mask = [0] * len(masked.tokens)
    result = client.update_actor(groups, loss=stemma.grpo(), adam=stemma.adamw(1e-3), old="policy", return_log_probs=True)
    every = {f"{group.uid}/{index}": rollout for group in groups for index, rollout in enumerate(group.rollouts)}
    assert {name for name, rollout in every.items() if rollout is not masked} == set(result.log_probs)
    assert all(len(result.log_probs[name].log_probs) == len(every[name].tokens) for name in result.log_probs)
    assert set(client.log_probs(groups)) == set(every)  # which reads tokens alone


def test_the_same_id_is_applied_once(client):
    options = dict(loss=stemma.grpo(), adam=stemma.adamw(1e-3), old="policy", request_id="run/1")
    first = client.update_actor(some_groups(), **options)
    again = client.update_actor(some_groups(), **options)
    assert again.replayed and not first.replayed and again.metrics == first.metrics
    assert client.model()["step"] == 1
    other = some_groups()
    other[0].rollouts[0].reward = 5.0
    with pytest.raises(stemma.StemmaError) as error:
        client.update_actor(other, **options)
    assert error.value.reason == "REQUEST_ID_REUSED"


def test_cispo_has_no_lower_bound_as_in_minimax_m1(client):
    groups, bounded, free, tokens = some_groups(), 0.0, 0.0, 0
    log_probs = client.log_probs(groups)
    for group in groups:
        for index, rollout in enumerate(group.rollouts):
            now = log_probs[f"{group.uid}/{index}"].log_probs
            rollout.reward, rollout.advantage = None, 0.5 - index
            rollout.old_log_probs = [lp + (1.5, 0.1, -0.5, 0.6)[t % 4] for t, lp in enumerate(now)]
            for lp, old in zip(now, rollout.old_log_probs):
                ratio, tokens = math.exp(lp - old), tokens + 1
                free -= min(ratio, 1.2) * rollout.advantage * lp
                bounded -= min(max(ratio, 0.8), 1.2) * rollout.advantage * lp
    loss = client.update_actor(groups, stemma.cispo(), stemma.adamw(0.0, weight_decay=0.0)).metrics["actor/loss"]
    assert loss == pytest.approx(free / tokens, rel=1e-4)  # log-probs of float32
    assert abs(loss - bounded / tokens) > 0.1 * abs(loss), "the control: ratios below 0.8 show"


def test_each_preset_trains_with_its_defaults(client):
    supervised = some_groups()
    for rollout in (r for g in supervised for r in g.rollouts):
        rollout.reward = None  # cross_entropy reads none
    for loss in (stemma.grpo(), stemma.dr_grpo(10), stemma.dapo(), stemma.gspo(), stemma.cispo(), stemma.importance_sampling(),
                 stemma.reinforce(), stemma.cross_entropy()):
        groups = supervised if loss.loss_mode == "cross_entropy" else some_groups()
        assert client.update_actor(groups, loss, stemma.adamw(1e-4)).steps[0].outcome == "APPLIED", loss
    with_kl = stemma.grpo(kl_loss_coef=1e-3, kl_loss_type="low_var_kl")
    assert client.update_actor(some_groups(), with_kl, stemma.adamw(1e-4), ref="policy").steps[0].outcome == "APPLIED"


def test_a_bad_request_is_named_and_the_next_one_is_served(client):
    bad = some_groups()
    bad[1].rollouts[2].tokens[0] = VOCAB
    with pytest.raises(stemma.StemmaError) as error:
        client.update_actor(bad, loss=stemma.grpo(), adam=stemma.adamw(1e-3))
    assert error.value.code == "INVALID_ARGUMENT" and error.value.uid == "g1"
    assert any("groups[1].rollouts[2].tokens" in field for field, _ in error.value.fields)
    assert client.update_actor(some_groups(), loss=stemma.grpo(), adam=stemma.adamw(1e-3)).steps[0].step == 1


def test_a_plan_is_made_without_a_step(client):
    plan = client.plan(some_groups(), loss=stemma.grpo(), adam=stemma.adamw(1e-3), schedule="reuse")
    assert plan["num_groups"] == 3 and plan["tokens_computed"] < plan["tokens_logical"]
    assert client.model()["step"] == 0


def test_an_export_opens_in_transformers(client):
    import transformers

    path, model = client.export("first"), client.model()
    assert transformers.AutoModelForCausalLM.from_pretrained(path).config.vocab_size == VOCAB
    assert (path.step, path.weight_version, path.lineage) == (model["step"], model["weight_version"], model["lineage"])
    assert path.bytes == sum(file.stat().st_size for file in pathlib.Path(path).glob("*.safetensors"))
    assert client.export("second", dtype="float64") != path and client.export("third", dtype="fp64").bytes > path.bytes


def test_a_proxy_of_the_environment_stands_between_no_processes_of_one_machine(model, monkeypatch):
    """`stemma local`, its worker, the command line and this client: nobody listens where the proxy would be."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with stemma.LocalServer(model, binary=BIN / "stemma", threads=1) as server, stemma.Client(server.address) as client:
        client.update_actor(some_groups(), loss=stemma.grpo(), adam=stemma.adamw(1e-2), old="on_policy")
        status = subprocess.run([BIN / "stemma", "status", "--server", server.address], capture_output=True, text=True, timeout=60)
        assert status.returncode == 0, status.stderr
        away = subprocess.run([BIN / "stemma", "status", "--server", "192.0.2.1:7070", "--connect-timeout", "0.5"],
                              capture_output=True, text=True, timeout=60)
    assert "Where grpc_proxy, https_proxy or http_proxy is set, the connection goes through that proxy" in away.stderr


def test_a_server_that_cannot_start_says_why(tmp_path):
    with pytest.raises(stemma.StemmaError, match="exit code 2"):
        stemma.LocalServer(tmp_path / "no-model", binary=BIN / "stemma")


FORKS = """
import os, sys, stemma

with stemma.LocalServer(sys.argv[1], binary=sys.argv[2], threads=1) as server:
    child = os.fork()
    if child == 0:
        server.close()
        sys.exit(0)  # which runs what atexit has, in the parent's copy
    assert os.waitpid(child, 0)[1] == 0
    with stemma.Client(server.address) as client:
        print(client.model()["state"], server.log.exists(), server.data.exists())
print(server.process.returncode, server.log.exists())
"""


@pytest.mark.parametrize("options, says", [
    ({"drain_timeout_s": "20"}, "drain_timeout_s is '20': pass a whole number from 0 on"),
    ({"drain_timeout_s": None}, "drain_timeout_s is None: pass a whole number"), ({"drain_timeout_s": -1}, "drain_timeout_s is -1"),
    ({"start_timeout_s": None}, "start_timeout_s is None: pass seconds"), ({"start_timeout_s": math.nan}, "start_timeout_s is nan")])
def test_a_timeout_that_is_none_is_refused_before_anything_is_started(options, says, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(ValueError, match=f"^{says}"):
        stemma.LocalServer("no-model", **options)
    assert not list(tmp_path.iterdir())


def test_a_server_that_starts_removes_no_folder_of_one_that_runs(model):
    """`stemma local` removes what killed runs left, once it is a minute old."""
    with stemma.LocalServer(model, binary=BIN / "stemma", threads=1) as first, stemma.Client(first.address) as client:
        os.utime(first.data.parent, (0, 0))
        with stemma.LocalServer(model, binary=BIN / "stemma", threads=1):
            assert first.log.exists() and first.data.exists()
        assert client.update_actor(some_groups(), loss=stemma.grpo(), adam=stemma.adamw(1e-2), old="on_policy").steps
    assert not first.data.parent.exists()


def test_a_script_that_changes_its_directory_finds_data_and_log(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with stemma.LocalServer(model, binary=BIN / "stemma", threads=1, data="data", log="log.txt") as server:
        monkeypatch.chdir("/")
        assert (server.data, server.log) == (tmp_path / "data", tmp_path / "log.txt") and server.log.read_text()


def test_a_forked_process_ends_without_the_server(model):
    done = subprocess.run([sys.executable, "-c", FORKS, model, BIN / "stemma"], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["IDLE True True", "0 False"], done


SLEEPS = """
import sys, threading, time, stemma

begun = []
starts = threading.Thread(target=lambda: begun.append(stemma.LocalServer(sys.argv[1], binary=sys.argv[2], threads=1)))
starts.start()
starts.join()
time.sleep(2)  # the thread that started the server has ended, and the server goes on
with stemma.Client(begun[0].address) as client:
    print(client.model()["state"], begun[0].process.pid, flush=True)
time.sleep(600)
"""


def descendants(pid):
    """The processes that a process started, and those that they did."""
    children = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            children += map(int, (task / "children").read_text().split())
    return children + [further for child in children for further in descendants(child)]


def is_alive(pid):
    """A zombie is not: nobody may be there to reap it."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_script_that_is_killed_leaves_no_server(model, number, tmp_path):
    script = subprocess.Popen([sys.executable, "-c", SLEEPS, model, BIN / "stemma"], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "TMPDIR": str(tmp_path)})
    begun = []
    try:
        state, pid = script.stdout.readline().split()
        begun = [int(pid), *descendants(int(pid))]
        assert state == "IDLE" and len(begun) == 3, "stemma local, a server and a worker"
        script.send_signal(number)
        assert script.wait(60) == -number
        deadline = time.monotonic() + 60
        while any(map(is_alive, begun)):
            assert time.monotonic() < deadline, "a process goes on"
            time.sleep(0.05)
    finally:
        script.kill()
        script.stdout.close()
        for pid in begun:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_start_that_fails_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for options, says in (({"binary": tmp_path / "none"}, "cannot run .*/none"), ({"log": tmp_path / "none/log"}, "none/log"),
                          ({"binary": BIN / "stemma"}, "exit code 2")):
        with pytest.raises((stemma.StemmaError, OSError), match=says):
            stemma.LocalServer(tmp_path / "no-model", **options)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reader", ["stops reading", "goes away"])
def test_who_reads_the_log_stops_nothing(model, tmp_path, reader):
    """A parent with `stdout=PIPE, stderr=STDOUT` that reads no more froze the server when the pipe was full; one that had gone
    ended it by SIGPIPE. The pipe is a page long, so that some lines fill it."""
    ready = tmp_path / "ready"
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 4096)
    argv = [BIN / "stemma", "local", "--model", model, "--data", tmp_path / "data", "--listen", "127.0.0.1:0", "--ready-file", ready,
            "--threads", "1"]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=into, stderr=into)
    os.close(into)
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.02)
    if reader == "goes away":
        os.close(out)
    try:
        with stemma.Client(ready.read_text().strip(), retries=0) as client:
            for _ in range(16):
                assert client.update_actor(some_groups(), stemma.grpo(), stemma.adamw(1e-3), timeout_s=60).steps
        process.terminate()
        assert process.wait(60) == 0, "it drained"
    finally:
        process.kill()
    if reader == "stops reading":
        said = os.read(out, 1 << 16)
        os.close(out)
        assert len(said) > 3000, "the pipe was full"
