"""What the tests of `stemma local` share: it runs beside a server and a worker that the test plays."""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

from cli_testing import BIN, Process, children_of, is_alive, wait_for

HERE = pathlib.Path(__file__).resolve().parent


class LocalCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        shutil.copy(BIN / "stemma", self.directory / "stemma")
        script = f"#!{sys.executable}\n" + (HERE / "fake_daemon.py").read_text()
        for name in ("stemma-server", "stemma-worker"):
            (self.directory / name).write_text(script)
            (self.directory / name).chmod(0o755)
        (self.directory / "tmp").mkdir()
        self.ready_file = self.directory / "ready"

    def local(self, *arguments, **options):
        environment = {**os.environ, "CLI_TEST_DIRECTORY": str(HERE), "TMPDIR": str(self.directory / "tmp")}
        return Process(self.directory / "stemma", "local", "--model", "m", "--ready-file", self.ready_file, *arguments,
                       env=environment, **options)

    def mode(self, name, mode):
        (self.directory / f"{name}.mode").write_text(mode)

    def forget_the_last_run(self):
        """The next run's workers are then those that there are files of."""
        self.ready_file.unlink(missing_ok=True)
        for path in self.directory.glob("*.pid"):
            path.unlink()

    def serving(self, local, workers=1):
        """The address and the children, once it serves."""
        address = wait_for(lambda: self.ready_file.exists() and self.ready_file.read_text(), "ready file")
        children = children_of(local.pid)
        self.assertEqual(len(children), 1 + workers)
        return address, children

    def gang(self):
        """The pid of each device's last worker."""
        return {path.name: int(path.read_text()) for path in self.directory.glob("worker-c*:*.pid")}

    def server_arguments(self):
        argv = json.loads((self.directory / "server.argv").read_text())
        return argv[argv.index("--model"):]

    def lines_until(self, local, word):
        lines = []
        wait_for(lambda: lines.append(local.process.stderr.readline()) or word in lines[-1], word)
        return lines

    def assert_gone(self, pids):
        for pid in pids:
            wait_for(lambda: not is_alive(pid), f"end of process {pid}", timeout=10)

    def assert_not_serving(self):
        with self.assertRaises(AssertionError):
            wait_for(self.ready_file.exists, "ready file", timeout=1)

    def worker_pid(self):
        path = self.directory / "worker.pid"
        return int(path.read_text()) if path.exists() else 0

    def server_pid(self, children):
        return next(pid for pid in children if pid != self.worker_pid())
