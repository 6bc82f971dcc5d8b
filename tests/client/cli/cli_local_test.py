"""`stemma local` as a supervisor, with a server and a worker that the test plays: what it starts and restarts."""

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import unittest

from cli_local_testing import LocalCase
from cli_testing import BIN, Process, children_of, is_alive, wait_for


class CliLocalTest(LocalCase):
    def test_options_reach_the_server_as_they_are(self):
        with self.local("--dtype", "fp64", "--listen", "127.0.0.1:0", "--wave-suffixes", "3") as local:
            self.serving(local)
            self.assertEqual(self.server_arguments(),
                             ["--model", "m", "--dtype", "fp64", "--listen", "127.0.0.1:0", "--wave-suffixes", "3"])

    def test_a_dead_worker_is_started_again(self):
        with self.local() as local:
            self.serving(local)
            for _ in range(2):
                first = self.worker_pid()
                os.kill(first, signal.SIGKILL)
                wait_for(lambda: self.worker_pid() not in (0, first), "another worker")
                wait_for(lambda: "a new worker has the model" in local.process.stderr.readline(), "the message")
            self.assertEqual(len(children_of(local.pid)), 2)
            local.send(signal.SIGTERM)
            code, out, _ = local.finish()
        self.assertEqual(code, 0)
        self.assertEqual(len(out.splitlines()), 1)

    def test_output_that_nobody_reads_holds_nothing_up(self):
        """Neither what it watches, nor its end; a reader that comes late finds the address all the same."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        for piece in (4096, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(write_end, b"x" * piece)
        os.set_blocking(write_end, True)
        with self.local(stdout=write_end) as local:
            os.close(write_end)
            address, _ = self.serving(local)
            first = self.worker_pid()
            os.kill(first, signal.SIGKILL)
            wait_for(lambda: self.worker_pid() not in (0, first), "another worker")
            self.lines_until(local, "a new worker has the model")
            said = bytearray()
            while not said.endswith(b"\n"):
                self.assertTrue(select.select([read_end], [], [], 30)[0], "the address never came")
                said += os.read(read_end, 1 << 16)
            self.assertEqual(said.lstrip(b"x").decode(), address)
            local.send(signal.SIGTERM)
            self.assertEqual(local.finish()[0], 0)
            self.assertEqual(os.read(read_end, 1), b"", "it is printed once")
        os.close(read_end)

    def test_without_a_folder_for_its_own_files_it_says_what_to_do(self):
        for exit_code, command in ((2, ("local", "--model", "m")), (1, ("doctor",))):
            with Process(BIN / "stemma", *command, env={**os.environ, "TMPDIR": "/proc"}) as process:
                code, out, err = process.finish()
            self.assertEqual(code, exit_code, err)
            self.assertIn("cannot create a folder in /proc: No such file or directory; set TMPDIR to", out + err)

    def test_a_worker_that_never_serves_ends_it_after_three_restarts(self):
        self.mode("worker", "fail")
        with self.local() as local:
            code, out, err = local.finish()
            self.assertEqual(children_of(local.pid), [])
        self.assertEqual(code, 1)
        self.assertEqual(out, "")
        self.assertIn("restart 3 of 3", err)
        self.assertFalse(self.ready_file.exists())

    def test_a_refused_configuration_exits_with_2_and_the_servers_message(self):
        self.mode("server", "refuse")
        with self.local() as local:
            code, out, err = local.finish()
        self.assertEqual(code, 2)
        self.assertEqual(out, "")
        self.assertIn("model: no such directory", err)

    def test_a_dead_server_is_started_again_at_its_address(self):
        with self.local("--listen", "127.0.0.1:0") as local:
            address, children = self.serving(local)
            os.kill(self.server_pid(children), signal.SIGKILL)
            lines = self.lines_until(local, "has the model")
            self.assertIn("the server ended with signal 9 (Killed); restart 1 of 3", "".join(lines))
            argv = self.server_arguments()
            self.assertEqual([argv[argv.index(option) + 1] for option in ("--listen", "--worker-listen", "--ops-listen")],
                             [address.strip(), "127.0.0.1:1", "127.0.0.1:2"])
            self.assertEqual(argv.count("--listen"), 1)
            local.send(signal.SIGTERM)
            code, out, _ = local.finish()
        self.assertEqual(code, 0)
        self.assertEqual(out, address)

    def test_a_server_that_is_started_again_serves_metrics_where_it_did(self):
        with self.local("--metrics-listen", "127.0.0.1:0") as local:
            _, children = self.serving(local)
            os.kill(self.server_pid(children), signal.SIGKILL)
            self.lines_until(local, "has the model")
            argv = self.server_arguments()
            self.assertEqual([argv[i + 1] for i, option in enumerate(argv) if option == "--metrics-listen"], ["127.0.0.1:3"])

    def test_a_server_that_is_not_there_again_ends_it_after_three_restarts(self):
        with self.local() as local:
            _, children = self.serving(local)
            self.mode("server", "fail")
            os.kill(self.server_pid(children), signal.SIGKILL)
            code, _, err = local.finish()
        self.assertEqual(code, 1)
        self.assertIn("the server ended with exit code 1 and was not ready once in 3 restarts", err)
        self.assert_gone(children)

    def test_a_server_that_asks_not_to_be_restarted_is_not(self):
        with self.local() as local:
            _, children = self.serving(local)
            self.mode("server", "damaged")
            os.kill(self.server_pid(children), signal.SIGKILL)
            code, _, err = local.finish()
        self.assertEqual(code, 93)
        self.assertIn("error: the server ended with exit code 93: it asks not to be restarted", err)
        self.assert_gone(children)

    def test_a_ready_file_that_a_killed_one_left_goes_and_is_there_again_once_it_serves(self):
        self.ready_file.write_text("127.0.0.1:1\n")
        self.mode("server", "refuse")
        with self.local() as local:
            local.finish()
        self.assertFalse(self.ready_file.exists(), "whoever looks there would take a server for running")
        self.ready_file.write_text("127.0.0.1:1\n")
        self.mode("server", "serve")
        with self.local() as local:
            wait_for(lambda: self.ready_file.exists() and self.ready_file.read_text() != "127.0.0.1:1\n", "its own address")
            local.send(signal.SIGTERM)
            local.finish()
        self.assertFalse(self.ready_file.exists())

    def test_the_worker_gets_the_secret_in_a_file_that_nobody_else_reads(self):
        with self.local() as local:
            self.serving(local)
            argv = {name: json.loads((self.directory / f"{name}.argv").read_text()) for name in ("server", "worker")}
            files = {pathlib.Path(a[a.index("--worker-secret-file") + 1]) for a in argv.values()}
            self.assertEqual(len(files), 1)
            secret = files.pop()
            self.assertEqual(secret.stat().st_mode & 0o777, 0o600)
            self.assertRegex(secret.read_text(), "^[0-9a-f]{64}\n$")
            self.assertNotIn(secret.read_text().strip(), "".join(pathlib.Path(f"/proc/{pid}/cmdline").read_text()
                                                                 for pid in [local.pid, *children_of(local.pid)]))
            self.assertEqual(argv["worker"][argv["worker"].index("--server") + 1], "127.0.0.1:1")
            self.assertIn("--once", argv["worker"])
            local.send(signal.SIGTERM)
            local.finish()
            self.assertFalse(secret.exists())

    def test_a_secret_that_was_cleaned_away_is_there_again_for_the_next_worker(self):
        with self.local() as local:
            self.serving(local)
            (folder,) = (self.directory / "tmp").glob("stemma-local-*")
            secret = (folder / "worker-secret").read_text()
            shutil.rmtree(folder)
            os.kill(self.worker_pid(), signal.SIGKILL)
            wait_for(lambda: "a new worker has the model" in local.process.stderr.readline(), "the message")
            self.assertEqual((folder / "worker-secret").read_text(), secret)
            self.assertEqual([(folder / name).stat().st_mode & 0o777 for name in (".", "worker-secret")], [0o700, 0o600])

    def test_a_folder_that_another_could_read_gets_no_secret(self):
        with self.local() as local:
            self.serving(local)
            (folder,) = (self.directory / "tmp").glob("stemma-local-*")
            shutil.rmtree(folder)
            folder.mkdir(mode=0o755)
            os.kill(self.worker_pid(), signal.SIGKILL)
            code, _, err = local.finish()
        self.assertEqual(code, 1)
        self.assertIn(f"{folder} is no folder of this user's alone", err)

    def test_a_worker_that_is_refused_after_it_has_served_is_started_again(self):
        with self.local() as local:
            self.serving(local)
            self.mode("worker", "refuse")
            os.kill(self.worker_pid(), signal.SIGKILL)
            self.lines_until(local, "the worker ended with exit code 2; restart 2 of 3")
            (self.directory / "worker.mode").unlink()
            self.lines_until(local, "a new worker has the model")

    def test_a_worker_that_its_server_dropped_is_killed_and_replaced(self):
        with self.local() as local:
            self.serving(local)
            first = self.worker_pid()
            self.mode("server", "dropped")
            wait_for(lambda: self.worker_pid() not in (0, first), "another worker")
            self.assertFalse(is_alive(first))
            wait_for(lambda: "a new worker has the model" in local.process.stderr.readline(), "the message")

    def test_restarts_of_its_own_worker_count_whoever_else_answers(self):
        self.mode("worker", "fail")
        self.mode("server", "another")
        with self.local() as local:
            code, out, err = local.finish()
        self.assertEqual(code, 1)
        self.assertIn("restart 3 of 3", err)
        self.assertEqual(out, "")

    def test_it_serves_when_its_own_worker_is_ready_not_when_another_answers(self):
        self.mode("worker", "never")
        self.mode("server", "another")
        with self.local() as local:
            wait_for(self.worker_pid, "the worker")
            self.assert_not_serving()

    def test_log_options_reach_both_and_its_own_lines_follow(self):
        with self.local("--log-format", "json", "--log-level", "info") as local:
            self.serving(local)
            for name in ("server", "worker"):
                argv = json.loads((self.directory / f"{name}.argv").read_text())
                self.assertEqual(argv[argv.index("--log-format") + 1], "json")
                self.assertEqual(argv[argv.index("--log-level") + 1], "info")
            local.send(signal.SIGTERM)
            _, _, err = local.finish()
        lines = [json.loads(line) for line in err.splitlines()]
        self.assertEqual(lines[0]["message"], "serving; Ctrl-C stops")
        self.assertEqual((lines[0]["program"], lines[0]["level"]), ("stemma local", "info"))

    def test_every_worker_of_a_gang_has_a_device_and_one_worker_has_none(self):
        for arguments, workers, kind in (((), 1, None), (("--workers", 3), 3, "cpu"),
                                         (("--workers", 2, "--mesh", "dp=2"), 2, "cpu"), (("--device", "cuda"), 1, "cuda"),
                                         (("--workers", 2, "--device", "cuda"), 2, "cuda")):
            self.forget_the_last_run()
            with self.local(*arguments) as local:
                _, children = self.serving(local, workers)
                self.assertEqual(set(self.gang()), {f"worker-{kind}:{i}.pid" for i in range(workers) if kind})
                self.assertEqual(self.server_arguments()[2:], ["--mesh", f"dp={workers}"] if workers > 1 else [])
                local.send(signal.SIGTERM)
                self.assertEqual(local.finish()[0], 0)
                self.assert_gone(children)

    def test_run_yaml_says_how_many_workers_there_are_unless_an_option_does(self):
        config = self.directory / "run.yaml"
        config.write_text("mesh:\n  dp: 3\n")
        for arguments, workers in (((), 3), (("--workers", 2), 2)):
            self.forget_the_last_run()
            with self.local("--config", config, *arguments) as local:
                self.serving(local, workers)

    def test_workers_undo_no_axis_of_a_file(self):
        config = self.directory / "run.yaml"
        config.write_text("mesh:\n  tp: 2\n")
        with self.local("--config", config, "--workers", 2) as local:
            self.serving(local, 2)
            self.assertNotIn("--mesh", self.server_arguments())
            local.send(signal.SIGTERM)
            self.assertEqual(local.finish()[0], 0)
        for workers in (1, 3, 4):
            self.forget_the_last_run()
            with self.local("--config", config, "--workers", workers) as local:
                code, _, err = local.finish()
            self.assertEqual(code, 2, err)
            self.assertIn(f"--workers {workers} and the mesh", err)
            self.assertIn("tp=2", err)

    def test_a_mesh_that_cannot_be_read_is_the_servers_to_refuse(self):
        with self.local("--mesh", "dp=x") as local:
            self.serving(local)
            self.assertEqual(self.server_arguments(), ["--model", "m", "--mesh", "dp=x"])

    def test_workers_and_a_mesh_that_differ_are_a_usage_error_that_names_both(self):
        with self.local("--workers", 3, "--mesh", "dp=2") as local:
            code, _, err = local.finish()
        self.assertEqual(code, 2)
        self.assertIn("--workers 3", err)
        self.assertIn("--mesh dp=2", err)
        self.assertFalse((self.directory / "server.argv").exists(), "nothing was started")

    def test_one_loss_restarts_the_whole_gang_and_counts_once(self):
        with self.local("--workers", 3) as local:
            _, children = self.serving(local, 3)
            for _ in range(4):  # more often than it may fail without serving between
                first = self.gang()
                os.kill(first["worker-cpu:1.pid"], signal.SIGKILL)
                lines = self.lines_until(local, "all 3 workers have the model again")
                self.assertEqual(sum("restart 1 of 3" in line for line in lines), 1, lines)
                self.assertEqual(sum("as its gang was lost" in line for line in lines), 2, lines)
                second = self.gang()
                self.assertFalse(set(first.values()) & set(second.values()))
                self.assert_gone(first.values())
            self.assertEqual(len(children_of(local.pid)), 4)
            local.send(signal.SIGTERM)
            code, out, _ = local.finish()
            self.assert_gone([*children, *self.gang().values()])
        self.assertEqual((code, len(out.splitlines())), (0, 1))

    def test_workers_that_stand_still_as_their_gang_is_lost_are_replaced_before_it_serves(self):
        with self.local("--workers", 3) as local:
            self.serving(local, 3)
            first = self.gang()
            for worker in (0, 2):
                os.kill(first[f"worker-cpu:{worker}.pid"], signal.SIGSTOP)
            os.kill(first["worker-cpu:1.pid"], signal.SIGKILL)
            lines = self.lines_until(local, "all 3 workers have the model again")
            self.assertEqual(sum("no longer answers its server" in line for line in lines), 2, lines)
            self.assertEqual(sum("as its gang was lost" in line for line in lines), 2, lines)
            self.assertFalse(set(first.values()) & set(self.gang().values()))

    def test_a_gang_serves_when_the_server_has_taken_its_weights(self):
        """A worker is ready before its server has looked at the digest of its weights, and it may refuse them."""
        for program, mode in (("worker", "never"), ("server", "untaken")):
            self.mode(program, mode)
            with self.local("--workers", 2) as local:
                wait_for(lambda: len(self.gang()) == 2, "the workers")
                self.assert_not_serving()
                self.mode("server", "serve")
                if program == "server":
                    wait_for(self.ready_file.exists, "ready file")
                local.send(signal.SIGTERM)
                local.finish()
            self.mode("worker", "serve")

    def test_a_gang_that_never_serves_ends_after_three_restarts(self):
        self.mode("worker", "fail")
        with self.local("--workers", 2) as local:
            code, _, err = local.finish()
            self.assertEqual(children_of(local.pid), [])
        self.assertEqual(code, 1)
        self.assertIn("restart 3 of 3", err)

    def test_the_worker_of_a_gang_that_its_server_dropped_is_the_one_that_is_killed(self):
        with self.local("--workers", 2) as local:
            self.serving(local, 2)
            first = self.gang()
            dropped = first["worker-cpu:1.pid"]
            self.mode("server", "dropped")
            lines = self.lines_until(local, "all 2 workers have the model again")
            self.assertIn(f"worker {dropped} no longer answers its server", "".join(lines))
            self.assertNotIn(f"worker {first['worker-cpu:0.pid']} no longer", "".join(lines))
            self.assert_gone(first.values())


if __name__ == "__main__":
    unittest.main()
