"""A server and a worker on this machine, for scripts and notebooks: `stemma local` as a context manager.

    with stemma.LocalServer("/models/tiny", binary="build/release/bin/stemma") as server:
        client = stemma.Client(server.address)
"""

import pathlib
import subprocess
import tempfile
import time

from .errors import StemmaError

_POLL_S = 0.02


class LocalServer:
    """Runs until close(). What the processes say goes to `log` (a path), or is shown when the start fails."""

    def __init__(self, model, binary="stemma", data=None, dtype=None, schedule=None, threads=None, config=None, log=None,
                 start_timeout_s=120.0):
        self._folder = tempfile.TemporaryDirectory(prefix="stemma-local-")
        folder = pathlib.Path(self._folder.name)
        self.data = pathlib.Path(data or folder / "data")
        self.log = pathlib.Path(log or folder / "log.txt")
        options = {"--model": model, "--config": config, "--dtype": dtype, "--schedule": schedule, "--threads": threads}
        ready = folder / "ready"
        command = [str(binary), "local", "--data", str(self.data), "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
        command += [str(part) for option, value in options.items() if value is not None for part in (option, value)]
        with open(self.log, "wb") as log_file:
            self.process = subprocess.Popen(command, stdout=log_file, stderr=subprocess.STDOUT,
                                            stdin=subprocess.DEVNULL)
        self.address = self._wait_until_ready(ready, start_timeout_s)

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
        self.close()
        raise StemmaError("UNAVAILABLE", "", f"`stemma local` did not start (exit code {exit_code}):\n{text}")

    def close(self):
        """Ends the processes; the server finishes what was accepted before."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
