"""D6: a worker that stands still (SIGSTOP) is killed and replaced by `stemma local` after the lost-worker time."""

import os
import pathlib
import signal

from client.cli.cli_testing import BIN, ROOT, Process, children_of, is_alive, wait_for

MODEL = ROOT / "tests" / "golden" / "llama_vanilla" / "model"


def test_d6_a_worker_that_is_stopped_is_killed_and_replaced(tmp_path):
    with Process(BIN / "stemma", "local", "--model", MODEL, "--data", tmp_path / "data", "--threads", 1, "--ready-file",
                 tmp_path / "ready", "--worker-lost-after", 4) as local:
        wait_for((tmp_path / "ready").exists, "stemma local to serve")
        address = (tmp_path / "ready").read_text()
        worker = next(pid for pid in children_of(local.pid)
                      if "stemma-worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_text())
        os.kill(worker, signal.SIGSTOP)
        said = []
        wait_for(lambda: said.append(local.process.stderr.readline()) or "a new worker has the model" in said[-1], "another worker")
        assert not is_alive(worker), "it was killed"
        assert any(f"worker {worker} no longer answers its server" in line for line in said), said
        assert any("left: no heartbeat for 4s" in line for line in said), said
        assert (tmp_path / "ready").read_text() == address
        local.send(signal.SIGTERM)
        assert local.finish()[0] == 0
