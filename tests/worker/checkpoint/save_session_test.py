"""Worker processes and a server that the test plays: two ranks write one folder, another number of ranks loads it, and a disk
that takes no more fails a save and nothing else."""

import hashlib
import pathlib
import resource

import pytest
from e2e.file_digest import digest_of
from worker.rpc.played_server import PlayedServer

MODEL = pathlib.Path(__file__).resolve().parents[2] / "golden" / "llama_vanilla" / "model"


@pytest.fixture(name="server")
def _server():
    with PlayedServer() as server:
        yield server


class Ranks:
    """Workers that have loaded, of a checkpoint where one is named."""

    def __init__(self, server, count, checkpoint="", step=0):
        started = [server.start(env={"OMP_NUM_THREADS": "1"}) for _ in range(count)]
        self.processes, self.sessions = [s[0] for s in started], [s[1] for s in started]
        store = ""
        for rank, session in enumerate(self.sessions):
            session.send(configure={
                "epoch": 1, "generation": 1, "data_directory": str(server.root), "rank": rank, "store": store, "step": step,
                "checkpoint": checkpoint,
                "config": {"model": str(MODEL), "dtype": "bf16", "threads": 1, "head_chunk_tokens": 128, "mesh": {"dp": count}}})
            if count > 1 and rank == 0:
                store = session.expect("store_opened").address
        self.digests = {session.expect("ready").model_digest for session in self.sessions}

    def save(self, server, folder):
        """(first, second) answer of each rank."""
        (server.root / "checkpoints" / folder / "optim").mkdir(parents=True, exist_ok=True)
        for session in self.sessions:
            session.send(save={"id": f"save {folder}", "folder": folder})
        answers = [(session.expect("save_staged"), session.expect("save_done")) for session in self.sessions]
        assert all(answer.id == f"save {folder}" for pair in answers for answer in pair)
        return answers


def check_parts(folder, answers):
    """The parts of all ranks are every byte of every file, once."""
    seen = {path: bytearray(path.stat().st_size) for path in folder.rglob("*") if path.is_file()}
    for rank, (_, done) in enumerate(answers):
        assert not done.HasField("failure"), done.failure
        for part in done.parts:
            assert part.rank == rank
            digest, content = hashlib.sha256(), (folder / part.file).read_bytes()
            for piece in part.ranges:
                end = piece.begin + piece.bytes
                digest.update(content[piece.begin:end])
                marks = seen[folder / part.file]
                marks[piece.begin:end] = bytes(mark + 1 for mark in marks[piece.begin:end])
            assert part.sha256 == digest.hexdigest(), part.file
    assert all(set(marks) <= {1} for marks in seen.values()), [path.name for path, marks in seen.items() if set(marks) - {1}]
    assert len(seen) > 4


def test_ranks_write_one_folder_and_others_load_it(server):
    saving = Ranks(server, 2)
    answers = saving.save(server, "c")
    check_parts(server.root / "checkpoints" / "c", answers)
    assert all(staged.staged_bytes > 0 for staged, _ in answers)
    assert {done.weights_digest for _, done in answers} == saving.digests
    for count in (1, 3):
        loading = Ranks(server, count, checkpoint="c", step=5)
        assert loading.digests == saving.digests
        assert loading.save(server, f"again-{count}")[0][1].weights_digest in saving.digests
    def contents(name):
        folder = server.root / "checkpoints" / name
        return {path.relative_to(folder): digest_of([path]) for path in folder.rglob("*") if path.is_file()}
    assert contents("c") == contents("again-1") == contents("again-3")


def test_a_disk_that_takes_no_more_fails_the_save_only(server):
    ranks = Ranks(server, 2)
    resource.prlimit(ranks.processes[1].pid, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    (staged, written), (_, refused) = ranks.save(server, "cut")
    assert not staged.HasField("failure") and not written.HasField("failure"), "the other rank has its own disk"
    assert refused.failure.reason == "FILE_TOO_LARGE" and "checkpoints/cut/" in refused.failure.message, refused
    assert not refused.parts and not refused.weights_digest
    resource.prlimit(ranks.processes[1].pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check_parts(server.root / "checkpoints" / "whole", ranks.save(server, "whole"))
    (server.root / "exports" / ".tmp-after").mkdir(parents=True)
    for session in ranks.sessions:
        session.send(export={"id": "e", "name": "after", "folder": ".tmp-after"})
    for session in ranks.sessions:
        assert not session.expect("export_done").HasField("failure")


def test_a_checkpoint_that_is_damaged_is_refused_by_name(server):
    Ranks(server, 1).save(server, "c")
    path = server.root / "checkpoints" / "c" / "optim" / "exp_avg-model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    _, session, _ = server.start()
    session.send(configure={"epoch": 1, "generation": 1, "data_directory": str(server.root), "checkpoint": "c",
                            "config": {"model": str(MODEL), "dtype": "bf16", "threads": 1}})
    said = session.expect("refused").message
    assert str(path) in said and "truncated" in said, said
