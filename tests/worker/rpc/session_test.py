"""Worker processes and a server that the test plays: what they register, how ranks meet, how a generation ends."""

import contextlib
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time

import grpc
import pytest

from worker.rpc.played_server import BUILD, PATIENCE_S, PlayedServer, ended

MODEL = pathlib.Path(__file__).resolve().parents[2] / "golden" / "llama_vanilla" / "model"
ENDS_WITHIN_S = 15  # the bound by which a client hears the truth; far above what it takes


@pytest.fixture(name="server")
def _server():
    with PlayedServer() as server:
        yield server


def configure(root, ranks=1, rank=0, store="", generation=1):
    return {"epoch": 1, "generation": generation, "data_directory": str(root), "rank": rank, "store": store,
            "config": {"model": str(MODEL), "dtype": "fp32", "threads": 1, "head_chunk_tokens": 128, "mesh": {"dp": ranks}}}


def key(incarnation, step=1):
    return {"epoch": 1, "incarnation": incarnation, "generation": 1, "step": step, "attempt": 1, "request_id": "a"}


def test_a_worker_registers_where_it_is(server):
    _, session, register = server.start(env={"OMP_NUM_THREADS": "1"})
    assert (register.device, register.address, register.cores) == ("cpu:0", "127.0.0.1", 1)
    session.close()
    _, session, register = server.start("--device", "cpu:3", "--address", "127.0.0.7")
    assert (register.device, register.address) == ("cpu:3", "127.0.0.7")
    assert re.fullmatch("[0-9a-f]{40}", register.build_id) and register.device_id == "", "a CPU is told by its name"
    printed = subprocess.run([BUILD / "bin/stemma-server", "--version"], check=True, capture_output=True, text=True).stdout
    assert register.version == printed.strip() and re.search(", messages [0-9a-f]{12}$", register.version), "the server's"
    assert 1 <= register.cores <= len(os.sched_getaffinity(0))
    assert register.machine == pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for group in (register.memory_group, register.core_group):
        assert not group or pathlib.Path(group).is_dir(), "none where nothing limits this machine's processes"
    fields = configure(server.root)
    fields["config"]["threads"] = 0  # all cores
    session.send(configure=fields)
    assert session.expect("ready").config.threads == register.cores


@pytest.mark.parametrize("option, value, said", [
    ("--device", "tpu:0", 'no kernels for a device of kind "tpu"'), ("--device", "cpu:x", '"cpu:x" is no device'),
    ("--address", "node-7", '"node-7" is no IP address'), ("--address", "0.0.0.0", '"0.0.0.0" is no IP address'),
    ("--address", "192.0.2.7", "192.0.2.7 cannot be listened on: Cannot assign requested address")])
def test_a_wrong_option_is_named(server, option, value, said):
    result = subprocess.run([BUILD / "bin/stemma-worker", "--server", server.address, "--worker-secret-file",
                             server.root / "secret", option, value], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 2
    assert result.stderr.startswith(f"stemma-worker: {option}: ") and said in result.stderr, result.stderr


FIRST_PROCESS = ("unshare", "--user", "--map-root-user", "--pid", "--fork")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_first_process_of_a_container(server, number):
    """The kernel keeps from it what it has no handler for."""
    if subprocess.run([*FIRST_PROCESS, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs PID namespaces of a user's own")
    process, _, register = server.start(within=FIRST_PROCESS)
    assert register.pid == 1
    (worker,) = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(worker), number)
    assert ended(process, ENDS_WITHIN_S)[0] == 128 + number


def test_a_worker_raises_its_limit_of_descriptors(server):
    process, _, _ = server.start(within=("prlimit", "--nofile=512:1024"))
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (1024, 1024)


def test_a_rank_that_meets_no_other_says_so(server):
    """The server would only see its stream end, and its reason names no network."""
    armed = server.root / "armed"
    armed.mkdir()
    (armed / "load.met@0").write_text("fail")
    process, session, _ = server.start(program="tests/failpoint_worker", env={"STEMMA_FAILPOINTS": str(armed)})
    session.send(configure=configure(server.root))
    assert session.expect("refused").message == "a test lets the rendezvous fail"
    session.close(grpc.StatusCode.ABORTED, "it refused Configure")
    code, said = ended(process, ENDS_WITHIN_S)
    assert code == 1 and said.rstrip().endswith("stemma-worker: a test lets the rendezvous fail"), said


class Gang:
    """Two ranks that have met; rank 0 tells the store before it is ready, whoever else has come."""

    def __init__(self, server, once=True):
        self.workers = [server.start(env={"OMP_NUM_THREADS": "1"}, once=once) for _ in range(2)]
        self.sessions = [session for _, session, _ in self.workers]
        self.sessions[0].send(configure=configure(server.root, ranks=2))
        store = self.sessions[0].expect("store_opened").address
        host, port = store.split(":")
        assert host == "127.0.0.1" and int(port) > 0
        self.sessions[1].send(configure=configure(server.root, ranks=2, rank=1, store=store))
        self.ready = [session.expect("ready") for session in self.sessions]
        assert all(ready.model_config for ready in self.ready)
        files = {ready.model_files for ready in self.ready}
        assert len(files) == 1 and len(files.pop()) == 64, "both have the files of one model"
        digests = {ready.model_digest for ready in self.ready}
        assert len(digests) == 1 and all(digests), digests
        self.processes = [process for process, _, _ in self.workers]


def test_ranks_meet_and_leave_together(server):
    gang = Gang(server)
    for session in gang.sessions:
        session.send(shutdown={})
    for process in gang.processes:
        assert ended(process, ENDS_WITHIN_S)[0] == 0


def test_a_rank_whose_stream_closes_ends_at_once(server):
    gang = Gang(server)
    gang.processes[1].send_signal(signal.SIGSTOP)  # it answers no rank any more
    gang.sessions[0].close()
    code, said = ended(gang.processes[0], ENDS_WITHIN_S)
    assert code == 1 and "the stream to" in said, said


def test_a_rank_that_waits_for_another_ends_with_its_stream(server):
    process, session, _ = server.start()
    session.send(configure=configure(server.root, ranks=2))
    assert session.expect("store_opened").address
    session.close()  # it would wait for a minute
    code, said = ended(process, ENDS_WITHIN_S)
    assert code == 1 and "the stream ended inside a wave" in said, said


def begin_step(gang):
    """Rank 0 begins a step in which it waits for the other one."""
    gang.sessions[0].send(payload={"id": "a", "last": True})
    gang.sessions[0].send(prepare={"key": key(gang.workers[0][2].incarnation), "plan": {},
                                   "header": {"loss": {"loss_mode": "vanilla"}}, "denominator": 1})


def test_a_rank_that_misses_another_ends_its_session(server):
    gang = Gang(server)
    gang.processes[1].kill()
    gang.processes[1].wait(PATIENCE_S)
    begin_step(gang)
    assert gang.sessions[0].next() is None, "an answer where there is none"
    code, said = ended(gang.processes[0], ENDS_WITHIN_S)
    assert code == 1 and "WARNING rank 0: the generation is over: reduce-scatter gradients of axis data.0.0, rank 0 of 2: a peer has ended" in said, said


def descriptors(process):
    """What a process holds open beyond the standard ones, by the kernel's names: a socket's or pipe's is its own."""
    names = {}
    for entry in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            names[int(entry.name)] = os.readlink(entry)
    return set(names.values()) - {names[fd] for fd in range(3)}


def test_a_worker_that_starts_itself_anew_leaves_its_descriptors(server):
    gang = Gang(server, once=False)
    worker = gang.processes[0]
    held = {name for name in descriptors(worker) if name.startswith(("socket:", "pipe:"))}
    gang.processes[1].send_signal(signal.SIGSTOP)  # so the step hangs, and nobody closes what it uses
    begin_step(gang)
    assert any("step 1 of request a" in line for line in worker.stderr)
    gang.sessions[0].close()
    assert server.next_session()[1].pid == worker.pid
    # The session's end has written the stack of the step, for which the program's files were opened.
    kept = {name for name in descriptors(worker) if name in held or name.startswith("/")}
    assert held and not kept, kept


def test_a_worker_whose_weights_are_refused_ends_and_does_not_load_them_again(server):
    process, session, _ = server.start(once=False)
    session.send(configure=configure(server.root))
    session.expect("ready")
    session.close(grpc.StatusCode.FAILED_PRECONDITION, "the model directory holds other weights")
    code, said = ended(process, ENDS_WITHIN_S)
    assert code == 2 and said.rstrip().endswith("refused: the model directory holds other weights"), said


# Root without capabilities may read no more than its files' modes say.
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()


def test_a_model_that_may_not_be_read_is_the_configurations_fault(server):
    shutil.copytree(MODEL, server.root / "model")
    (server.root / "model/model.safetensors").chmod(0)
    process, session, _ = server.start(once=False, within=WITHOUT_CAPABILITIES)
    fields = configure(server.root)
    fields["config"]["model"] = str(server.root / "model")
    session.send(configure=fields)
    assert "Permission denied" in session.expect("refused").message
    session.close()
    code, said = ended(process, ENDS_WITHIN_S)
    assert code == 2 and "Permission denied" in said, said


def test_a_file_that_no_export_will_have_is_named(server):
    """The rank that would write it says so, and the others do not say it again."""
    templates = server.root / "model" / "additional_chat_templates"
    shutil.copytree(MODEL, server.root / "model")
    templates.mkdir()
    for name in ("rag+tools.jinja", "tools.jinja"):
        (templates / name).write_text("")
    process, session, _ = server.start()
    fields = configure(server.root)
    fields["config"]["model"] = str(server.root / "model")
    session.send(configure=fields)
    session.expect("ready")
    session.close()
    _, said = ended(process, ENDS_WITHIN_S)
    (line,) = [line for line in said.splitlines() if ".jinja" in line]
    assert "WARNING" in line and f'{server.root}/model' in line and 'additional_chat_templates/"rag+tools.jinja" is not a valid name' in line, line


def test_the_ready_file_of_a_worker_that_ended_goes_before_the_new_one_has_the_model(server):
    ready = server.root / "ready"
    ready.write_text("127.0.0.1:1\n")
    _, session, _ = server.start("--ready-file", ready)
    assert not ready.exists()
    session.send(configure=configure(server.root))
    session.expect("ready")
    assert ready.read_text() == server.address + "\n"


def test_a_worker_that_waits_for_its_next_session_has_no_ready_file(server):
    ready = server.root / "ready"
    worker, session, _ = server.start("--ready-file", ready, program="tests/fake_worker", once=False)
    session.send(configure=configure(server.root))
    session.expect("ready")
    assert ready.exists()
    session.close()
    assert any("waits for the server as a new incarnation" in line for line in worker.stderr)
    assert not ready.exists(), "the new incarnation, which would remove it, begins two seconds later"


def test_a_server_whose_address_changes_is_found_again_soon(server):
    host, port = server.address.split(":")
    hosts = server.root / "hosts"
    hosts.write_text("127.0.0.9 stemma-server.test\n")  # where nobody listens
    own_hosts = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts)
    if subprocess.run([*own_hosts, "true"], capture_output=True).returncode != 0:
        pytest.skip("this test gives a worker an /etc/hosts of its own, which is refused here")
    worker = server.begin(within=own_hosts, address=f"stemma-server.test:{port}")
    assert any("no server at stemma-server.test" in line for line in worker.stderr)
    with open(hosts, "r+") as file:  # the same file, for it is mounted
        file.write(f"{host} stemma-server.test\n")
    begun_s = time.monotonic()
    server.next_session()
    assert time.monotonic() - begun_s < 15, "gRPC asks for a name every 30 s, unless it is told"


@pytest.mark.parametrize("uid", ["lost", "parted"])
def test_a_lost_generation_is_the_sessions_end(server, uid):
    process, session, register = server.start(program="tests/fake_worker")
    session.send(configure=configure(server.root, ranks=2))
    assert session.expect("store_opened").address
    session.expect("ready")
    session.send(payload={"id": "a", "groups": [{"uid": uid}], "group_indices": [4], "last": True})
    session.send(prepare={"key": key(register.incarnation), "plan": {"groups": [4]}})
    if uid == "parted":
        assert session.expect("vote").yes
        session.send(apply={"key": key(register.incarnation)})
    assert session.next() is None, "an answer where there is none"
    code, said = ended(process, ENDS_WITHIN_S)
    assert code == 1 and said.rstrip().endswith("stemma-worker: told that rank 1 has gone"), said
