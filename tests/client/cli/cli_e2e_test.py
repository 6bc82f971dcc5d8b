"""The CLI against a real server and worker: replay by both schedules, plan, log-probs, export, restart, nothing left."""

import datetime
import json
import os
import pathlib
import re
import signal
import tempfile
import unittest

from cli_testing import BIN, Process, children_of, is_alive, is_pending, run, wait_for

os.environ.setdefault("OMP_NUM_THREADS", "1")


class CliE2eTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        cls.model = cls.directory / "model"
        result = run("model", "init", cls.model, "--seed", 1, "--vocab", 128, "--hidden", 32, "--layers", 2, "--norm-std", 0.1)
        assert result.returncode == 0, result.stderr

    def local(self, name, *arguments):
        return Process(BIN / "stemma", "local", "--model", self.model, "--data", self.directory / name, "--threads", 1,
                       "--memory-budget", "256MB",
                       "--ready-file", self.directory / f"{name}.address", *arguments)

    def address(self, name, local):
        path = self.directory / f"{name}.address"

        def look():
            if local.process.poll() is not None:
                raise AssertionError(local.process.stderr.read())
            return path.exists() and path.read_text().strip()

        return wait_for(look, "stemma local serves")

    def call(self, address, *arguments, code=0):
        result = run(*arguments, "--server", address)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def wait_until_it_serves(self, address):
        wait_for(lambda: run("status", "--server", address).returncode == 0, "the worker has the weights")

    def records(self, *arguments):
        return [json.loads(line) for line in self.call(*arguments, "-o", "json").stdout.splitlines()]

    def trace(self, address, name):
        path = self.directory / f"{name}.jsonl"
        self.call(address, "trace", "make", path, "--seed", 3, "--steps", 3, "--groups", 2, "--n", "uniform:2:4", "--lr",
                  "1e-3", "--prompt-len", "fixed:24", "--response-len", "uniform:1:9", "--mask-prob", 0.1)
        self.assertEqual(run("trace", "check", path).returncode, 0)
        return path

    def test_reuse_and_dense_replay_to_the_same_numbers(self):
        with self.local("reuse", "--dtype", "fp64", "--schedule", "reuse") as local:
            address = self.address("reuse", local)
            trace = self.trace(address, "main")
            plan = json.loads(self.call(address, "plan", trace, "-o", "json").stdout)
            self.assertEqual(plan["groups_reuse"], 2)
            reuse = self.records(address, "replay", trace)
            self.assertEqual([step["step"] for step in reuse], [1, 2, 3])
            self.assertEqual(reuse[0]["tokens_computed"], plan["tokens_computed"])
            self.assertGreater(reuse[0]["tokens_saved"], 0)
            again = self.records(address, "replay", trace)
            self.assertTrue(all(step["replayed"] for step in again))
            self.assertEqual(json.loads(self.call(address, "status", "-o", "json").stdout)["model"]["step"], 3)
            self.assertEqual(len(self.records(address, "requests", "list")), 3)
            exported = self.call(address, "export", "end", "--dtype", "float64").stdout.strip()
            self.assertEqual(run("model", "inspect", exported).returncode, 0)
            self.assertEqual(self.call(address, "export", "end", "--delete").stdout, "")
            self.assertFalse(pathlib.Path(exported).exists())
            local.send(signal.SIGTERM)
            self.assertEqual(local.finish()[0], 0)
        expected = self.directory / "expected.jsonl"
        # fp64: sums in another order differ by about 1e-15 of the value; 1e-12 leaves room for three AdamW steps.
        tolerances = {"schema": "stemma.expected.v1", "loss": {"absolute": 1e-11}, "grad_norm": {"relative": 1e-11}}
        expected.write_text("".join(json.dumps(line) + "\n" for line in [tolerances, *reuse]))
        with self.local("dense", "--dtype", "fp64", "--schedule", "dense") as local:
            address = self.address("dense", local)
            dense = self.records(address, "replay", trace, "--verify", expected)
            self.assertEqual([step["tokens_saved"] for step in dense], [0, 0, 0])
            reuse[1]["loss"] += 1e-9  # negative control: the tolerance sees it
            expected.write_text("".join(json.dumps(line) + "\n" for line in [tolerances, *reuse]))
            self.call(address, "replay", trace, "--verify", expected, code=1)

    def test_checkpoints_are_saved_listed_loaded_and_deleted(self):
        position, back = self.directory / "position", self.directory / "position-back"
        position.write_bytes(b"where the loader stands")
        with self.local("checkpoints") as local:
            address = self.address("checkpoints", local)
            self.assertEqual(self.call(address, "checkpoint", "list").stdout, "")
            trace = self.trace(address, "checkpointed")
            self.call(address, "checkpoint", "save", "--name", "begin", "--client-state", position)
            self.records(address, "replay", trace)
            saved = self.records(address, "checkpoint", "save", "--pinned")[0]
            self.assertEqual((saved["name"], saved["step"], saved["pinned"]), ("step-00000003", 3, True))
            listed = self.records(address, "checkpoint", "list")
            self.assertEqual([(known["name"], known["base"]) for known in listed], [("begin", False), ("step-00000003", True)])
            self.assertTrue(listed[0]["saved"].endswith("Z"))
            self.assertIs(self.records(address, "checkpoint", "unpin", "step-00000003")[0]["pinned"], False)
            self.assertIs(self.records(address, "checkpoint", "pin", "begin")[0]["pinned"], True)
            self.call(address, "checkpoint", "delete", "step-00000003", code=64 + 9)  # recovery would begin with it
            self.call(address, "checkpoint", "verify", "nothing", code=64 + 5)
            weights = pathlib.Path(listed[0]["path"]) / "model.safetensors"
            self.call(address, "checkpoint", "verify", "begin")
            content = weights.read_bytes()
            weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            self.assertIn("model.safetensors", self.call(address, "checkpoint", "verify", "begin", code=64 + 15).stdout)
            self.call(address, "checkpoint", "load", "begin", code=64 + 15)
            weights.write_bytes(content)
            self.call(address, "checkpoint", "verify", "begin")
            # What cannot be written is found before the steps are given up.
            self.call(address, "checkpoint", "load", "begin", "--client-state-out", back / "no" / "folder", code=2)
            self.assertTrue(self.records(address, "checkpoint", "list")[1]["base"])
            loaded = self.records(address, "checkpoint", "load", "begin", "--client-state-out", back)[0]
            self.assertEqual((loaded["step"], back.read_bytes()), (0, position.read_bytes()))
            self.wait_until_it_serves(address)
            said = self.call(address, "checkpoint", "load", "step-00000003", "--client-state-out", back, code=5).stderr
            self.assertIn(f"it is loaded, and nothing was kept with it: {back} is not written", said)
            self.assertEqual(back.read_bytes(), position.read_bytes(), "an earlier file stays")
            self.wait_until_it_serves(address)
            self.call(address, "checkpoint", "load", "begin")
            self.call(address, "checkpoint", "delete", "step-00000003")
            self.assertEqual([known["name"] for known in self.records(address, "checkpoint", "list")], ["begin"])

    def test_a_server_does_not_wait_for_the_connection_of_stemma_local(self):
        with self.local("idle") as local:
            self.address("idle", local)
            local.send(signal.SIGTERM)
            code, _, text = local.finish()
        self.assertEqual(code, 0, text)
        begun, ended = (datetime.datetime.strptime(re.search(rf"(?m)^(\S+)Z INFO {word}", text)[1], "%Y-%m-%dT%H:%M:%S.%f")
                        for word in ("stopping: ", "stopped$"))
        self.assertLess((ended - begun).total_seconds(), 4, "it waits 5 s for a connection that nobody reads")

    def test_a_stop_that_signals_every_process_saves_a_checkpoint(self):
        """As systemd stops a service, or Slurm a job: `stemma local`, its server and its worker have the signal each."""
        with self.local("stopped") as local:
            address = self.address("stopped", local)
            self.call(address, "replay", self.trace(address, "stopped"))
            children = children_of(local.pid)
            server = next(pid for pid in children if "stemma-server" in pathlib.Path(f"/proc/{pid}/cmdline").read_text())
            # It takes for one stop what comes within a second. While it stands, a late machine tears nothing apart. The one that
            # comes second is another signal: of two equal ones that are pending it would get one.
            os.kill(server, signal.SIGSTOP)
            for pid in {*children, local.pid} - {server}:
                os.kill(pid, signal.SIGTERM)
            wait_for(lambda: is_pending(server, signal.SIGTERM), "the stop that `stemma local` passes on")
            os.kill(server, signal.SIGINT)
            self.assertTrue(is_pending(server, signal.SIGTERM) and is_pending(server, signal.SIGINT))
            os.kill(server, signal.SIGCONT)
            code, _, text = local.finish()
            self.assertEqual(code, 0, text)
            self.assertNotIn("leaving at once", text)
            for pid in children:
                wait_for(lambda: not is_alive(pid), "the end of its children", timeout=10)
        with self.local("stopped") as local:
            saved = self.records(self.address("stopped", local), "checkpoint", "list")
            self.assertEqual([(known["step"], known["base"]) for known in saved], [(3, True)])

    def test_log_probs_of_a_made_trace_are_the_models(self):
        with self.local("logprob", "--dtype", "fp64") as local:
            address = self.address("logprob", local)
            trace = self.directory / "own.jsonl"
            self.call(address, "trace", "make", trace, "--old-noise", 0, "--response-len", "uniform:1:5")
            for record in self.records(address, "logprob", trace):
                self.assertLess(record["max_distance_to_old"], 1e-6)  # the trace holds float32 of log-probs near 5

    def test_sigkill_of_local_leaves_no_process(self):
        with self.local("killed") as local:
            self.address("killed", local)
            children = children_of(local.pid)
            self.assertEqual(len(children), 2)
            local.send(signal.SIGKILL)
            local.process.wait()
            for pid in children:
                wait_for(lambda: not is_alive(pid), "the end of its children", timeout=10)

    def test_a_killed_worker_comes_back_and_the_server_serves_on(self):
        with self.local("restart") as local:
            address = self.address("restart", local)
            trace = self.trace(address, "restart")
            self.call(address, "replay", trace, "--limit", 1)
            worker = next(pid for pid in children_of(local.pid)
                          if "stemma-worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_text())
            os.kill(worker, signal.SIGKILL)
            wait_for(lambda: "a new worker has the model" in local.process.stderr.readline(), "the message")
            self.call(address, "replay", trace, "--run-id", "after")

    def test_bad_requests_are_named_and_the_server_serves_on(self):
        with self.local("bad") as local:
            address = self.address("bad", local)
            trace = self.trace(address, "good")
            bad = self.directory / "bad.jsonl"
            lines = trace.read_text().splitlines()
            lines[1] = lines[1].replace('"prompt_tokens":[', '"prompt_tokens":[128,', 1)
            bad.write_text("\n".join(lines) + "\n")
            result = self.call(address, "replay", bad, code=64 + 3)
            self.assertIn("groups[0].prompt_tokens", result.stderr)
            self.call(address, "replay", trace)

    def test_configuration_errors_exit_with_2_and_the_servers_message(self):
        result = run("local", "--model", self.directory / "missing")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("missing", result.stderr)
        config = self.directory / "run.yaml"
        config.write_text("dtype: int3\nschedule: sometimes\nno_such_key: 1\n")
        result = run("local", "--model", self.model, "--config", config)
        self.assertEqual(result.returncode, 2, result.stderr)
        for word in ("int3", "sometimes", "no_such_key"):
            self.assertIn(word, result.stderr)

    def test_doctor_finds_this_machine_fit(self):
        result = run("doctor", "-o", "json", timeout=180)
        checks = {record["check"]: record for record in map(json.loads, result.stdout.splitlines())}
        self.assertEqual(checks["self check"]["state"], "ok", result.stdout + result.stderr)
        self.assertEqual(result.returncode, 0)
        self.assertFalse([name for name in checks if name.startswith("link ")], "one rank has no links")

    def test_a_folder_for_temporary_files_that_is_not_there_is_not_replaced_by_the_current_one(self):
        folder = self.directory / "current"
        folder.mkdir()
        for arguments in (("local", "--model", self.model, "--data", self.directory / "data"),
                          ("doctor", "--data", self.directory / "data", "-o", "json"),
                          ("mesh", "--model", "qwen3-8b", "--trace", "none.jsonl", "--ranks", "2", "--device", "h200")):
            result = run(*arguments, cwd=folder, env={"TMPDIR": str(self.directory / "none")})
            self.assertNotEqual(result.returncode, 0)
            self.assertFalse((self.directory / "none").exists())
            self.assertIn(f"cannot create a folder in {self.directory / 'none'}", result.stdout + result.stderr)
            self.assertEqual(list(folder.iterdir()), [])
        folder.rmdir()

    def doctor_in_a_folder(self, *arguments):
        """Its records, and what it left: files in its temporary folder, and processes that name it."""
        folder = self.directory / "doctor"
        folder.mkdir()
        result = run("doctor", *arguments, timeout=300, env={"TMPDIR": str(folder)})
        left = sorted(map(str, folder.iterdir()))
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes()
            except OSError:  # it has ended
                continue
            if str(folder).encode() in command:
                left.append(command.decode())
        self.assertEqual(left, [])
        folder.rmdir()
        return result

    def test_doctor_measures_the_links_of_a_mesh_and_leaves_nothing(self):
        for mesh, links in (("dp=2,tp=2", {"data": 2, "dp": 2, "tp": 2}), ("pp=2,cp=2", {"data": 2, "cp": 2, "pp": 2})):
            result = self.doctor_in_a_folder("--mesh", mesh, "-o", "json")
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            checks = {record["check"]: record for record in map(json.loads, result.stdout.splitlines())}
            self.assertIn("4 ranks", checks["self check"]["detail"])
            measured = {name.removeprefix("link "): check for name, check in checks.items() if name.startswith("link ")}
            self.assertEqual({axis: check["ranks"] for axis, check in measured.items()}, links)
            for check in measured.values():
                self.assertEqual(check["state"], "ok")
                self.assertRegex(check["detail"], r"^2 ranks: \S+ GB/s, \S+ us a message$")
                self.assertTrue(1e3 <= check["bytes_per_s"] <= 1e13 and 1e-7 <= check["message_s"] <= 60, check)


if __name__ == "__main__":
    unittest.main()
