"""How `stemma local` ends, with a server and a worker that the test plays: its exit code, and what it leaves."""

import os
import pathlib
import re
import signal
import time
import unittest

from cli_local_testing import LocalCase
from cli_testing import children_of, wait_for

SAME_STOP_S = 1.1  # signals within a second are of one stop


class CliLocalStopTest(LocalCase):
    def test_it_prints_its_address_and_ends_cleanly_when_told(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.local() as local:
                address, children = self.serving(local)
                local.send(number)
                code, out, err = local.finish()
            self.assertEqual(code, 0, err)
            self.assertEqual(out, address)
            self.assert_gone(children)
            self.assertFalse(self.ready_file.exists())
            self.assertEqual(list((self.directory / "tmp").glob("stemma-local-*")), [])

    def test_sigkill_leaves_no_process(self):
        with self.local() as local:
            _, children = self.serving(local)
            local.send(signal.SIGKILL)
            local.process.wait()
            self.assert_gone(children)

    def test_sigkill_leaves_no_process_even_if_it_ignores_sigterm(self):
        self.mode("server", "stubborn")
        with self.local() as local:
            _, children = self.serving(local)
            local.send(signal.SIGKILL)
            local.process.wait()
            self.assert_gone(children)

    def test_a_second_signal_does_not_wait_for_a_stubborn_server(self):
        self.mode("server", "stubborn")
        with self.local() as local:
            _, children = self.serving(local)
            local.send(signal.SIGTERM)
            wait_for(lambda: "stopping" in local.process.stderr.readline(), "the message")
            time.sleep(SAME_STOP_S)
            local.send(signal.SIGTERM)
            code, _, err = local.finish(timeout=10)
        self.assertEqual(code, 1)
        self.assertIn("the server was killed before it had drained", err)
        self.assert_gone(children)

    def test_signals_that_come_together_are_one(self):
        """A supervisor's, and those of whoever signals every process of a service besides."""
        self.mode("server", "draining")
        with self.local() as local:
            _, children = self.serving(local)
            for number in (signal.SIGTERM, signal.SIGINT):
                local.send(number)
            code, _, err = local.finish()
        self.assertEqual(code, 0, err)
        self.assertEqual((self.directory / "server.stops").read_text(), "told\n")
        self.assert_gone(children)

    def test_sigkill_leaves_no_worker_of_a_gang(self):
        self.mode("worker", "stubborn")
        with self.local("--workers", 2) as local:
            _, children = self.serving(local, 2)
            local.send(signal.SIGKILL)
            local.process.wait()
            self.assert_gone(children)

    def test_a_server_that_does_not_end_as_it_was_told_is_no_success(self):
        """As one that a second signal ended: what it was to save is not there."""
        self.mode("server", "hasty")
        with self.local() as local:
            _, children = self.serving(local)
            local.send(signal.SIGTERM)
            code, _, err = local.finish()
        self.assertEqual(code, 1)
        self.assertIn("the server ended with exit code 1 before it had drained: its last step or checkpoint may be missing", err)
        self.assert_gone(children)

    def test_a_server_that_the_signal_ends_before_it_serves_had_nothing_to_save(self):
        self.mode("server", "slow")
        with self.local() as local:
            (server,) = wait_for(lambda: children_of(local.pid), "the server")
            wait_for((self.directory / "server.argv").exists, "its start")
            os.kill(server, signal.SIGSTOP)  # until its own signal is pending too
            wait_for(lambda: "\nState:\tT" in pathlib.Path(f"/proc/{server}/status").read_text(), "its stop")
            os.kill(server, signal.SIGTERM)
            local.send(signal.SIGTERM)
            os.kill(server, signal.SIGCONT)
            code, out, err = local.finish()
        self.assertEqual((code, out), (0, ""), err)

    def test_a_stop_that_signals_every_process_leaves_the_server_a_worker(self):
        """Without one it could save no checkpoint."""
        with self.local("--workers", 2) as local:
            _, children = self.serving(local, 2)
            workers = set(self.gang().values())
            for pid in children:
                ignored = int(re.search(r"SigIgn:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1], 16)
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    self.assertEqual(bool(ignored >> (number - 1) & 1), pid in workers, (number, pid))
            local.send(signal.SIGTERM)
            self.assertEqual(local.finish()[0], 0)
            self.assert_gone(children)


if __name__ == "__main__":
    unittest.main()
