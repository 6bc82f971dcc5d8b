"""D2: one server per data directory, and files that are whole or not there: two servers, full disks, limits, read-only.
What a server finds that someone has to see to ends it with 2."""

import contextlib
import hashlib
import os
import pathlib
import resource
import shutil
import sqlite3
import subprocess

import grpc
import pytest

from e2e.errors.good_request import Request, refusal
from e2e.errors.metrics_page import read
from e2e.errors.server import MODEL, Cluster, start, wait_for
from stemma import _proto

GOOD = ("--model", MODEL)


def export(cluster, name):
    return cluster.stub.ExportWeights(_proto.ExportWeightsRequest(name=name), timeout=60)


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        yield running


def test_d2_a_second_server_is_refused_and_told_who_holds_the_directory(cluster, tmp_path):
    data = cluster.root / "data"
    code, text = start(tmp_path, *GOOD, "--ready-file", tmp_path / "ready", data=data)
    assert code == 2 and not (tmp_path / "ready").exists()
    assert f"--data {data}: is in use by stemma-server pid {cluster.server.pid} at {cluster.address}" in text, text
    assert str(pathlib.Path(export(cluster, "mine").path).parent) == str(data / "exports")


def test_d2_of_many_that_start_at_once_one_serves(tmp_path):
    from e2e.errors.server import BUILD, wait_for, write_secret
    write_secret(tmp_path / "secret")
    logs = [open(tmp_path / f"log{i}", "w") for i in range(4)]
    servers = [subprocess.Popen([BUILD / "bin/stemma-server", "--model", MODEL, "--data", tmp_path / "data",
                                 "--worker-secret-file", tmp_path / "secret", "--die-with-parent"], stderr=log)
               for log in logs]
    try:
        wait_for(lambda: sum(s.poll() == 2 for s in servers) == 3, "three to be refused")
        alive = [s for s in servers if s.poll() is None]
        assert len(alive) == 1
        for server, i in zip(servers, range(4)):
            if server is not alive[0]:
                assert f"is in use by stemma-server pid {alive[0].pid}" in (tmp_path / f"log{i}").read_text()
    finally:
        for server, log in zip(servers, logs):
            server.kill()
            server.wait()
            log.close()
    with Cluster(data=tmp_path / "data", worker=False) as after:
        assert after.state() == "LOADING", "the lock went with the process that was killed"


@pytest.mark.parametrize("data, why", [("", "--data is empty"), ("file", "file: is not a directory"), ("file/below", "cannot be created")])
def test_d2_what_is_no_directory_is_refused_at_start(tmp_path, data, why):
    (tmp_path / "file").touch()
    code, text = start(tmp_path, *GOOD, data=tmp_path / data if data else "")
    assert code == 2 and why in text, text


def folder_of(tmp_path, size):
    """A path of so many bytes, in names that any file system takes."""
    left = size - len(str(tmp_path))
    names = ["d" * 99] * ((left - 2) // 100)
    return tmp_path.joinpath(*names, "d" * (left - 100 * len(names) - 1))


def test_d2_a_path_that_the_journal_could_not_have_is_refused_at_start(tmp_path):
    code, text = start(tmp_path, *GOOD, data=folder_of(tmp_path, 449))
    assert code == 2 and "has 449 bytes as an absolute path, the limit is 448: choose a shorter one" in text, text
    with Cluster(data=folder_of(tmp_path, 448), worker=False) as longest:
        assert longest.state() == "LOADING"


def files_below(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def make_another_run(path):
    """A directory with what a server finds in its own: an export, one that is written, incidents, a calibration."""
    for name in ("exports/theirs", "exports/.tmp-running", "incidents/000001-0001", "checkpoints/c", "spool"):
        (path / name).mkdir(parents=True)
        (path / name / "file").write_text("theirs")
    (path / "incidents/000001-0001/server.json").write_text("theirs")
    (path / "calibration.json").write_text("theirs")


@pytest.mark.parametrize("link", (False, True))
@pytest.mark.parametrize("durability", ("replay", "rewind"))
def test_d2_a_directory_that_is_replaced_under_a_running_server_stays_whole(tmp_path, durability, link):
    own, data, theirs = tmp_path / "own", tmp_path / "data", tmp_path / "theirs"
    make_another_run(theirs)
    before = files_below(theirs)
    if link:
        own.mkdir()
        data.symlink_to(own)
    with Cluster(data=data, flags=("--durability", durability)) as cluster:
        for step, name in enumerate("bc"):
            cluster.stub.SaveCheckpoint(_proto.SaveCheckpointRequest(name=name), timeout=60)
            assert Request().send(cluster.stub).result.steps[0].step == step + 1
        if link:
            data.unlink()
            data.symlink_to(theirs)
        else:
            data.rename(own)
            theirs.rename(data)
        calls = {
            "a save": lambda: cluster.stub.SaveCheckpoint(_proto.SaveCheckpointRequest(name="d"), timeout=60),
            "a verification": lambda: cluster.stub.VerifyCheckpoint(_proto.VerifyCheckpointRequest(name="c"), timeout=60),
            "a deletion": lambda: cluster.stub.DeleteCheckpoint(_proto.DeleteCheckpointRequest(name="b"), timeout=60),
            "an export": lambda: export(cluster, "mine"),
            "an export's deletion": lambda: cluster.stub.DeleteExport(_proto.DeleteExportRequest(name="theirs"), timeout=60),
        }
        for what, call in calls.items():
            error = refusal(call)
            assert error.reason == "INTERNAL" and "is another folder than the one that was opened" in error.message, (what, error)
        cluster.worker.kill()  # an incident
        cluster.worker.wait()
        wait_for(lambda: cluster.state() in ("RECOVERING", "UNUSABLE"), "the server to see the worker's end")
        cluster.server.terminate()
        cluster.server.wait(60)
    assert files_below(theirs if link else data) == before
    assert {path.name for path in (own / "checkpoints").iterdir()} == {"b", "c"}


class Mount:
    """A file system of its own, of `size` bytes."""

    def __init__(self, path, size, options=""):
        self.path = path
        path.mkdir()
        result = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}{options}", "tmpfs", path], capture_output=True,
                                text=True)
        if result.returncode != 0:
            pytest.skip(f"this test mounts a file system, which is refused here: {result.stderr.strip()}")

    def remount(self, options):
        subprocess.run(["mount", "-o", f"remount,{options}", self.path], check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.path], check=True)


def test_d2_a_read_only_directory_is_refused_at_start(tmp_path):
    with Mount(tmp_path / "disk", 1 << 20) as disk:
        disk.remount("ro")
        code, text = start(tmp_path, *GOOD, data=disk.path)
        assert code == 2 and "cannot be written: Read-only file system" in text, text


def fill(disk, left):
    """Writes a file that leaves so many bytes."""
    (disk.path / "ballast").write_bytes(bytes(shutil.disk_usage(disk.path).free - left))


@contextlib.contextmanager
def read_only(folder):
    """Nothing may write to the folder meanwhile; where a Mount was not refused."""
    for options in (["--bind", folder], ["-o", "remount,bind,ro"]):
        subprocess.run(["mount", *options, folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def leftovers(data):
    return sorted(p.name for p in (data / "exports").iterdir()) if (data / "exports").exists() else []


def test_d2_a_full_disk_is_an_error_with_a_reason_and_leaves_nothing(tmp_path):
    with Mount(tmp_path / "disk", 128 << 20) as disk:
        with Cluster(data=disk.path) as cluster:
            fill(disk, 16 << 10)
            error = refusal(lambda: export(cluster, "full"))
            assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL"), error
            assert "No space left on device" in error.message and leftovers(disk.path) == []
            (disk.path / "ballast").unlink()
            assert (pathlib.Path(export(cluster, "full").path) / "model.safetensors").exists()
            with read_only(disk.path / "exports"):
                error = refusal(lambda: export(cluster, "read-only"))
            assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "READ_ONLY"), error
            assert leftovers(disk.path) == ["full"] and cluster.server.poll() is None and cluster.worker.poll() is None


def test_d2_a_server_that_finds_no_room_for_its_journal_says_so_by_its_exit_code(tmp_path):
    """Others fill the disk while a request of many steps runs. Whoever starts the server again may wait for room, and need not
    take it for one that cannot run."""
    with Mount(tmp_path / "disk", 128 << 20) as disk, Cluster(data=disk.path) as cluster:
        request = Request()
        request.header["ppo_epochs"] = 2000
        request.header["request"]["wait_ms"] = 0
        request.send(cluster.stub)
        wait_for(lambda: cluster.model().step >= 3, "some steps")
        with contextlib.suppress(OSError):  # the server writes, too: what is left when this stops is less than a page
            fill(disk, 0)
        wait_for(lambda: cluster.server.poll() is not None, "the server's end")
        assert cluster.server.returncode == 94 and "No space left on device" in cluster.said()
        (disk.path / "ballast").unlink()
        cluster.restart()
        wait_for(lambda: cluster.model().step > 3, "steps that go on")


def test_d2_an_export_leaves_the_journal_its_part_of_the_disk(tmp_path):
    with Mount(tmp_path / "disk", 128 << 20) as disk, Cluster(data=disk.path) as cluster:
        fill(disk, 48 << 20)
        error = refusal(lambda: export(cluster, "full"))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL"), error
        assert "room for the journal" in error.message and leftovers(disk.path) == []
        assert Request().send(cluster.stub).result.steps[0].step == 1, "there is room for its rows"
        assert cluster.server.poll() is None and cluster.worker.poll() is None


@pytest.mark.parametrize("durability", ["replay", "rewind"])
def test_d2_a_request_whose_rows_might_find_no_room_is_refused_and_the_server_lives(tmp_path, durability):
    flags = ("--durability", durability, "--metrics-listen", "127.0.0.1:0")
    with Mount(tmp_path / "disk", 64 << 20) as disk, Cluster(data=disk.path, flags=flags) as cluster:
        first = Request().send(cluster.stub).result
        assert first.steps[0].step == 1
        fill(disk, 24 << 20)
        error = refusal(lambda: Request().send(cluster.stub))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL"), error
        assert "room for the journal" in error.message
        numbers = read(cluster)["stemma_requests_refused_total"]
        assert numbers["disk_full"] == 1 and sum(numbers.values()) == 1, "whoever runs the server is told, too"
        assert " WARNING refused with DISK_FULL: the disk of " in cluster.said()
        (disk.path / "ballast").unlink()
        second = Request().send(cluster.stub).result
        assert second.steps[0].step == 2 and second.lineage == first.lineage, "the weights are those of before"
        assert cluster.server.poll() is None


def refused_start(tmp_path, data, *words):
    """A server that is given this directory ends with 2 and says why."""
    code, text = start(tmp_path, *GOOD, "--durability", "rewind", "--ready-file", tmp_path / "ready", data=data)
    assert code == 2 and not (tmp_path / "ready").exists(), text
    for word in words:
        assert word in text, text


def test_d2_a_journal_of_a_newer_program_is_left_to_it(tmp_path):
    data = tmp_path / "data"
    with Cluster(data=data, worker=False):
        pass
    with sqlite3.connect(data / "journal/journal.db") as journal:
        journal.execute("PRAGMA user_version=2")
    journal.close()
    refused_start(tmp_path, data, "has version 2", "start the one that wrote it")


def test_d2_a_folder_of_checkpoints_that_is_not_mounted_is_waited_for(tmp_path):
    data = tmp_path / "data"
    with Cluster(data=data, flags=("--durability", "rewind")) as cluster:
        assert Request().send(cluster.stub).result.steps[0].step == 1
        cluster.stub.SaveCheckpoint(_proto.SaveCheckpointRequest(name="one"), timeout=60)
    (data / "checkpoints").rename(tmp_path / "elsewhere")
    refused_start(tmp_path, data, "none of the checkpoints", "as one")
    (data / "checkpoints").rmdir()
    (tmp_path / "elsewhere").rename(data / "checkpoints")
    with Cluster(data=data, worker=False, flags=("--durability", "rewind")):
        pass


def test_d2_a_journal_that_may_not_be_written_is_named(tmp_path):
    with Mount(tmp_path / "disk", 64 << 20) as disk:
        with Cluster(data=disk.path / "data", worker=False):
            pass
        with read_only(disk.path / "data/journal"):
            refused_start(tmp_path, disk.path / "data", "journal.db: may not be written")


def test_d2_a_file_size_limit_is_an_error_with_a_reason_and_ends_no_process(cluster):
    before = leftovers(cluster.root / "data")
    limit = (16 << 10, resource.RLIM_INFINITY)
    old = resource.prlimit(cluster.worker.pid, resource.RLIMIT_FSIZE, limit)
    try:
        error = refusal(lambda: export(cluster, "long"))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "FILE_TOO_LARGE"), error
    finally:
        resource.prlimit(cluster.worker.pid, resource.RLIMIT_FSIZE, old)
    assert leftovers(cluster.root / "data") == before and cluster.worker.poll() is None
    assert export(cluster, "long").bytes > 16 << 10


def test_d2_what_killed_workers_left_of_exports_goes_when_the_next_one_begins(cluster):
    data = cluster.root / "data"
    before = leftovers(data)
    left = data / "exports" / ".tmp-x-abc"
    left.mkdir(parents=True)
    (left / "model.safetensors").touch()
    (data / "exports" / "x.tmp-").mkdir()
    assert (pathlib.Path(export(cluster, "next").path) / "model.safetensors").exists()
    assert leftovers(data) == sorted([*before, "next", "x.tmp-"])


def test_d2_a_journal_that_is_missing_or_old_is_waited_for_and_the_spool_stays(tmp_path):
    data, journal = tmp_path / "data", tmp_path / "data" / "journal"
    with Cluster(data=data) as cluster:
        assert Request().send(cluster.stub).result.steps[0].step == 1
        cluster.kill()
    shutil.copytree(journal, tmp_path / "old")
    with Cluster(data=data) as cluster:
        assert Request().send(cluster.stub).result.steps[0].step == 2
        cluster.kill()
    journal.rename(tmp_path / "newest")
    spooled = sorted(p.name for p in (data / "spool").iterdir())
    refused_start(tmp_path, data, "the journal is missing or older than the spool", "no journal/journal.db")
    shutil.copytree(tmp_path / "old", journal)
    refused_start(tmp_path, data, "the journal is missing or older than the spool", "is of the server's start 2")
    assert sorted(p.name for p in (data / "spool").iterdir()) == spooled != []
    shutil.rmtree(journal)
    (tmp_path / "newest").rename(journal)
    with Cluster(data=data) as cluster:
        assert cluster.model().step == 2, "nothing was lost meanwhile"


def test_d2_a_checkpoint_of_another_version_is_left_to_it_whatever_is_resumed(tmp_path):
    """Its steps would be given up for good; so --resume none does not pass it by."""
    folder = tmp_path / "data/checkpoints/old"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"version": 1}')
    for resume in ("none", "auto"):
        code, text = start(tmp_path, *GOOD, "--resume", resume, data=tmp_path / "data")
        assert code == 2 and "old/manifest.json: has the version 1" in text and "or move the folder away" in text, text
    folder.rename(tmp_path / "old")
    with Cluster(data=tmp_path / "data", worker=False):
        pass


def add_config_key(manifest):
    """Makes it one of a version whose run.yaml has a key more, sealed as that version would."""
    text = manifest.read_text().replace('"config":{', '"config":{"later":1,', 1)
    begin = text.index('"seal":"') + len('"seal":"')
    zeros = text[:begin] + "0" * 64 + text[begin + 64:]
    manifest.write_text(text[:begin] + hashlib.sha256(zeros.encode()).hexdigest() + text[begin + 64:])


def test_d2_checkpoints_of_a_newer_version_are_not_given_up_for_an_older_one(tmp_path):
    data = tmp_path / "data"
    with Cluster(data=data) as cluster:
        for name in ("first", "second"):
            Request().send(cluster.stub)
            cluster.stub.SaveCheckpoint(_proto.SaveCheckpointRequest(name=name), timeout=60)
        cluster.kill()
    manifest = data / "checkpoints/second/manifest.json"
    written = manifest.read_text()
    add_config_key(manifest)
    for flags in ((), ("--durability", "rewind")):
        code, text = start(tmp_path, *GOOD, *flags, data=data)
        assert code == 2 and "second/manifest.json: was written by another version of Stemma" in text and "later" in text, text
    manifest.write_text(written)
    with Cluster(data=data) as cluster:
        assert cluster.model().step == 2


def test_d2_a_path_that_goes_up_from_a_link_is_the_systems(tmp_path):
    (tmp_path / "disk/run").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk/run")
    with Cluster(data=f"{tmp_path}/link/../data", worker=False):
        assert (tmp_path / "disk/data/journal").is_dir() and not (tmp_path / "data").exists()


def test_d2_a_users_files_in_the_data_directory_stay(tmp_path):
    data = tmp_path / "data"
    theirs = [data / ".tmp-thesis", data / "exports" / ".tmp-mine", data / "checkpoints" / ".tmp-mine"]
    for folder in theirs:
        folder.mkdir(parents=True)
    with Cluster(data=data, worker=False):
        assert all(folder.exists() for folder in theirs)
    with Cluster(data=data, worker=False):
        assert [folder.exists() for folder in theirs] == [True, False, False], "the last two are the server's by now"


def test_d2_what_killed_writers_left_goes_at_the_next_start(tmp_path):
    with Cluster(data=tmp_path / "data", worker=False):
        pass
    left = tmp_path / "data" / "exports" / ".tmp-x-abc"
    left.mkdir(parents=True)
    (left / "model.safetensors").touch()
    (tmp_path / "data" / ".calibration.json.aB3xYz").touch()
    (tmp_path / "data" / "exports" / "kept").mkdir()
    with Cluster(data=tmp_path / "data", worker=False):
        assert leftovers(tmp_path / "data") == ["kept"]
        assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [".lock", "checkpoints", "exports", "journal", "spool"]
