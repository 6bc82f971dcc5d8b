"""A server and its workers on this machine, for scripts and notebooks: `stemma local` as a context manager.

    with stemma.LocalServer("/models/tiny", binary="build/release/bin/stemma") as server:
        client = stemma.Client(server.address)
"""

import atexit
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from typing import Any, Optional

from ._tries import checked_s
from .config import whole
from .errors import StemmaError

_POLL_S = 0.02


def _locked(folder):
    """A descriptor that holds the folder's lock until it is closed, or its process is gone: `stemma local` removes folders of this
    name that are old and that nobody locks. None: the file system has no locks, and so none is removed."""
    import fcntl  # not where a client alone may run

    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


class LocalServer:
    """Runs until close(), or until this process ends, however it does: where it is killed, the server stops by itself, as in
    close(), and only a temporary directory is left. Ctrl-C reaches this process only: what becomes of the server is the
    script's decision. A process that is forked off may call the server by a Client of its own, where it may have one at all
    (docs/python.md, "When something is wrong"); only the one that started the server ends it.

    address     "host:port", for Client
    data        the server's data directory; exports lie below it. A temporary one is removed by close()
    log         the file that the processes write to
    process     the subprocess.Popen of `stemma local`
    """

    address: str
    data: pathlib.Path
    log: pathlib.Path
    process: "subprocess.Popen[bytes]"

    def __init__(self, model, binary="stemma", data=None, dtype=None, schedule=None, threads=None, config=None, log=None,
                 start_timeout_s=120.0, drain_timeout_s=20, workers: Optional[int] = None, durability=None) -> None:
        """Starts a server with its workers, and returns once it serves.

        model       a Hugging Face model directory
        binary      the `stemma` program: a path, or a name on PATH
        data        the data directory; None: a temporary one
        dtype, schedule, threads, config    as `stemma local --help` says
        log         a file for what the processes write; None: a temporary one, shown when the start fails
        start_timeout_s     how long loading the model may take
        drain_timeout_s     whole seconds that close() leaves to what runs
        workers     how many share the work; None: as config says, else one
        durability  "replay" or "rewind": what a loss of a worker leaves of the steps (docs/reliability.md). None: as config
                    says, or with neither config nor data "rewind": nothing of a temporary directory outlives this server
        """
        drain_timeout_s = whole("drain_timeout_s", drain_timeout_s)
        start_timeout_s = checked_s("start_timeout_s", start_timeout_s)
        options = {"--model": model, "--config": config, "--dtype": dtype, "--schedule": schedule, "--threads": threads,
                   "--drain-timeout": drain_timeout_s, "--workers": workers, "--durability": durability}
        if config is None and data is None and durability is None:
            options["--durability"] = "rewind"
        self._stop_s = drain_timeout_s + 40  # `stemma local` kills what does not end, some seconds before that
        self._owner_pid = os.getpid()
        # A TemporaryDirectory would be removed at the end of a forked process, too.
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="stemma-local-"))
        self._lock = _locked(self._folder)
        ready = self._folder / "ready"
        try:
            # Absolute: this process may change its directory.
            self.data = pathlib.Path(os.path.abspath(data or self._folder / "data"))
            self.log = pathlib.Path(os.path.abspath(log or self._folder / "log.txt"))
            command = [str(binary), "local", "--data", str(self.data), "--listen", "127.0.0.1:0",
                       "--ready-file", str(ready), "--die-with-parent"]
            command += [str(part) for option, value in options.items() if value is not None for part in (option, value)]
            self.process = self._start(command)
        except BaseException:
            self._remove_folder()
            raise
        atexit.register(self.close)
        try:
            self.address = self._wait_until_ready(ready, start_timeout_s)
        except BaseException:  # nobody has the object that could close it
            self.close()
            raise

    def _start(self, command):
        with open(self.log, "wb") as log_file:
            try:
                return subprocess.Popen(command, stdout=log_file, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, start_new_session=True)
            except OSError as error:
                raise StemmaError("UNAVAILABLE", "", f"cannot run {command[0]}: {error.strerror}. Pass binary=, the path "
                                  "of the `stemma` program (build/release/bin/stemma after `make build`)") from None

    def _wait_until_ready(self, ready, timeout_s):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            address = ready.read_text().strip() if ready.exists() else ""  # the file appears whole
            if address:
                return address
            if self.process.poll() is not None:
                break
            time.sleep(_POLL_S)
        text = self.log.read_text(errors="replace")[-4000:]
        exit_code = self.process.poll()
        why = f"within {timeout_s:g} s" if exit_code is None else f"(exit code {exit_code})"
        raise StemmaError("UNAVAILABLE", "", f"`stemma local` did not start {why}:\n{text}")

    def close(self) -> None:
        """Ends the processes, and with them the weights: export first. The request that runs has drain_timeout_s to end
        its current optimizer step (a log-prob pass or an export: to end); if it has more steps, and whatever waits, it
        answers DRAINING. Does nothing in a process that was forked off."""
        if os.getpid() != self._owner_pid:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=self._stop_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._remove_folder()
        atexit.unregister(self.close)

    def _remove_folder(self):
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> "LocalServer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
