"""The binary without a server: help of every command against a golden file, exit codes, traces from a seed, plain output.

To renew the golden file after a wanted change: STEMMA_UPDATE_GOLDEN=1 and run this test."""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import tempfile
import time
import unittest

from cli_testing import BIN, DEADLINE_S, GOLDEN, has_escape, run, wait_for


def commands(path=()):
    """Every command by its path, parents first."""
    text = run(*path, "--help").stdout
    yield path, text
    if "Subcommands:" in text:
        section = text.split("Subcommands:")[1].split("\n\n")[0]
        for name in re.findall(r"^  ([a-z]+)", section, re.MULTILINE):
            yield from commands((*path, name))


class CliBinaryTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def make(self, name, *arguments):
        result = run("trace", "make", self.directory / name, "--vocab", 64, "--prompt-len", "uniform:4:12", "--n", 3,
                     "--response-len", "lognormal:6:0.5:16", "--mask-prob", 0.2, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return (self.directory / name).read_bytes()

    def test_commands_and_options_are_those_of_the_golden_file(self):
        text = "".join(f"$ {' '.join(('stemma', *path))} --help\n{help_text}\n" for path, help_text in commands())
        golden = GOLDEN / "help.txt"
        if os.environ.get("STEMMA_UPDATE_GOLDEN"):
            golden.write_text(text)
        self.maxDiff = None
        self.assertEqual(text, golden.read_text())

    def test_every_command_that_runs_has_examples(self):
        for path, text in commands():
            if "Subcommands:" not in text:
                self.assertIn("Examples:\n  stemma " + " ".join(path), text)

    def test_usage_errors_exit_with_2_and_print_nothing_on_stdout(self):
        for arguments in (["bogus"], [], ["replay"], ["status"], ["trace", "make"], ["export", "x", "--dtype", "int8"],
                          ["local"], ["model", "init", "x", "--family", "gpt2"], ["trace", "check", "missing.jsonl"],
                          ["replay", "missing.jsonl", "--server", "127.0.0.1:1"],
                          ["status", "--server", "x", "--timeout", "-1"]):
            result = run(*arguments, cwd=self.directory)
            self.assertEqual(result.returncode, 2, f"{arguments}: {result.stderr}")
            self.assertEqual(result.stdout, "")
            self.assertNotEqual(result.stderr, "")

    def test_an_unreachable_server_exits_with_3(self):
        result = run("status", "--server", "127.0.0.1:1", "--connect-timeout", "0.2")
        self.assertEqual(result.returncode, 3)
        self.assertIn("127.0.0.1:1", result.stderr)

    def test_the_time_to_connect_is_over_however_often_it_is_tried(self):
        begin = time.monotonic()
        result = run("status", "--server", "127.0.0.1:1", "--connect-timeout", "4")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("within 4 s", result.stderr)
        self.assertTrue(3.9 < time.monotonic() - begin < 15)

    def test_an_empty_value_is_not_taken_for_none(self):
        """As of a variable of a script that is not set: `checkpoint load ""` went back to the newest checkpoint."""
        server = ["--server", "127.0.0.1:1"]
        for arguments, name in ((["checkpoint", "load", "", *server], "NAME"), (["checkpoint", "save", "--name", "", *server], "--name"),
                                (["replay", "a.jsonl", "--verify", "", *server], "--verify"),
                                (["replay", "a.jsonl", "--run-id", "", *server], "--run-id"),
                                (["replay", "a.jsonl", "--report", "", *server], "--report"),
                                (["bound", "a.jsonl", "--model", ""], "--model"), (["status", "--server", ""], "--server")):
            result = run(*arguments, cwd=self.directory)
            self.assertEqual(result.returncode, 2, f"{arguments}: {result.stderr}")
            self.assertIn(f"{name} is empty: give a value, or leave it out", result.stderr)
        for program, option in (("stemma-server", "--config"), ("stemma-server", "--mesh"), ("stemma-worker", "--server")):
            result = run(option, "", binary=BIN / program, cwd=self.directory)
            self.assertEqual(result.returncode, 2, f"{option}: {result.stderr}")
            self.assertIn(f"{option} is empty: give a value, or leave it out", result.stderr)

    def test_a_limit_on_files_is_an_error_that_leaves_none(self):
        for arguments in (["trace", "make", "limited.jsonl", "--vocab", "64", "--groups", "50"],
                          ["model", "init", "limited", "--hidden", "64", "--layers", "2"]):
            before = sorted(self.directory.iterdir())
            result = run("--fsize=4096", BIN / "stemma", *arguments, binary="prlimit", cwd=self.directory)
            self.assertIn(result.returncode, (1, 2), f"{arguments}: {result.stderr}")
            self.assertIn("File too large", result.stderr)
            self.assertEqual(sorted(self.directory.iterdir()), before)

    def test_an_interrupt_leaves_no_half_of_a_file(self):
        for arguments in (["trace", "make", "half.jsonl", "--vocab", 64, "--groups", 64, "--steps", 1_000_000],
                          ["model", "init", "half", "--hidden", 1024, "--layers", 1000]):
            target = self.directory / arguments[2]
            process = subprocess.Popen([BIN / "stemma", *map(str, arguments)], cwd=self.directory, text=True,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            wait_for(target.exists, f"{target} is there")
            process.send_signal(signal.SIGINT)
            message = process.communicate(timeout=DEADLINE_S)[1]
            self.assertEqual(process.returncode, 5, message)
            self.assertIn(f"interrupted: {arguments[2]} is not kept", message)
            self.assertFalse(target.exists())

    def test_a_line_without_an_end_is_not_read_into_memory(self):
        result = run("--as=1000000000", BIN / "stemma", "bound", "/dev/zero", binary="prlimit")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("/dev/zero:1: is longer than 67108864 bytes", result.stderr)

    def test_a_replay_overwrites_nothing_that_it_reads_or_writes_otherwise(self):
        self.make("read.jsonl", "--seed", 5)
        (self.directory / "expected").write_text("expected")
        (self.directory / "link").symlink_to("read.jsonl")
        for arguments, one, other in ((["--report", "read.jsonl"], "--report", "TRACE"), (["--report", "link"], "--report", "TRACE"),
                                      (["--trace-out", "./read.jsonl"], "--trace-out", "TRACE"),
                                      (["--verify", "expected", "--report", "expected"], "--report", "--verify"),
                                      (["--report", "new", "--trace-out", "../" + self.directory.name + "/new"], "--trace-out", "--report")):
            before = {path: path.read_bytes() for path in self.directory.iterdir() if path.is_file()}
            result = run("replay", "read.jsonl", "--server", "127.0.0.1:1", *arguments, cwd=self.directory)
            self.assertEqual(result.returncode, 2, f"{arguments}: {result.stderr}")
            self.assertRegex(result.stderr, f"error: {one} .* is the file of {other} too, and would overwrite it")
            self.assertEqual(before, {path: path.read_bytes() for path in self.directory.iterdir() if path.is_file()})

    def test_a_seed_decides_the_trace_byte_for_byte(self):
        first = self.make("a.jsonl", "--seed", 5, "--steps", 2, "--kl-coef", 0.01)
        self.assertEqual(first, self.make("b.jsonl", "--seed", 5, "--steps", 2, "--kl-coef", 0.01))
        self.assertNotEqual(first, self.make("c.jsonl", "--seed", 6, "--steps", 2, "--kl-coef", 0.01))

    def test_base64_and_lists_hold_the_same_trace(self):
        self.make("a.jsonl", "--seed", 5)
        self.make("b.jsonl", "--seed", 5, "--base64")
        stats = [run("trace", "stat", self.directory / name).stdout for name in ("a.jsonl", "b.jsonl")]
        self.assertEqual(stats[0], stats[1])
        self.assertNotEqual(stats[0], "")

    def test_a_trace_is_not_overwritten(self):
        self.make("a.jsonl", "--seed", 5)
        result = run("trace", "make", self.directory / "a.jsonl", "--vocab", 64)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("a.jsonl: it is there already; choose another name, or remove it", result.stderr)

    def test_check_names_every_broken_line(self):
        lines = self.make("a.jsonl", "--seed", 5, "--steps", 3).decode().splitlines()
        lines[1] = lines[1].replace('"prompt_tokens":[', '"prompt_tokens":["x",', 1)
        lines[3] = lines[3][:-1]
        broken = self.directory / "broken.jsonl"
        broken.write_text("\n".join(lines) + "\n")
        result = run("trace", "check", broken, "-o", "json")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(json.loads(result.stdout)["problems"], 2)
        self.assertIn("line 2", result.stderr)
        self.assertIn("line 4", result.stderr)
        self.assertNotIn("line 3", result.stderr)

    def test_stat_refuses_what_no_count_is_true_of(self):
        lines = self.make("a.jsonl", "--seed", 5, "--steps", 2, "--base64").decode().splitlines()
        request = json.loads(lines[2])
        uid = request["groups"][1]["uid"]
        for change, says in (({"prompt_tokens": ""}, f"group {uid} has an empty prompt"),
                             ({"rollouts": [{**request["groups"][1]["rollouts"][0], "response_mask": "//////////8="}]},
                              f"group {uid}, rollout {uid}/0: response_mask has 8 bytes")):
            broken = json.loads(lines[2])
            broken["groups"][1].update(change)
            (self.directory / "broken.jsonl").write_text("\n".join([*lines[:2], json.dumps(broken)]) + "\n")
            self.assert_refused(["trace", "stat", "broken.jsonl"],
                                [f"broken.jsonl: line 3: {says}", "`stemma trace check broken.jsonl` lists every problem"])
            self.assertEqual(run("trace", "check", "broken.jsonl", cwd=self.directory).returncode, 2)

    def test_names_that_are_no_utf8_are_printed_as_json(self):
        name = os.fsdecode(b"tr\xff.jsonl")
        self.make(name)
        (self.directory / os.fsdecode(b"m\xff")).mkdir()
        model = os.fsdecode(b"m\xff/model")
        self.assertEqual(subprocess.run([BIN / "stemma", "model", "init", model], cwd=self.directory, capture_output=True,
                                        timeout=60).returncode, 0)
        for arguments, key, shown in ((["trace", "check", name], "trace", "tr\ufffd.jsonl"),
                                      (["bound", name, "--model", model], "model", "m\ufffd/model"),
                                      (["model", "inspect", model], "path", "m\ufffd/model")):
            result = run(*arguments, "-o", "json", cwd=self.directory)
            self.assertEqual(result.returncode, 0, f"{arguments}: {result.stderr}")
            self.assertTrue(json.loads(result.stdout)[key].endswith(shown), result.stdout)

    def test_stat_of_equal_lengths_is_the_formula(self):
        path = self.directory / "a.jsonl"
        run("trace", "make", path, "--vocab", 64, "--prompt-len", "fixed:33", "--response-len", "fixed:8", "--n", 4)
        stat = json.loads(run("trace", "stat", path, "-o", "json").stdout)
        self.assertEqual(stat["token_saving_bound"], 4 * (32 + 8) / (32 + 4 * 8))

    def test_a_model_from_a_seed_is_inspected(self):
        for name in ("a", "b"):
            result = run("model", "init", self.directory / name, "--seed", 3, "--dtype", "bfloat16", "--tied")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout, f"{self.directory / name}\n")
        read = lambda name: (self.directory / name / "model.safetensors").read_bytes()
        self.assertEqual(read("a"), read("b"))
        record = json.loads(run("model", "inspect", self.directory / "a", "-o", "json").stdout)
        self.assertEqual(record["model_type"], "qwen3")
        self.assertTrue(record["tie_word_embeddings"])
        self.assertEqual(list(record["tensors_by_dtype"]), ["BF16"])
        tensors = [json.loads(line) for line in
                   run("model", "inspect", self.directory / "a", "--tensors", "-o", "json").stdout.splitlines()]
        self.assertEqual(tensors[0]["name"], "model.embed_tokens.weight")
        table = run("model", "inspect", self.directory / "a", "--tensors").stdout.splitlines()
        self.assertEqual(table[0].split(), ["name", "dtype", "shape", "bytes", "file"])
        self.assertEqual(table[1].split(), ["model.embed_tokens.weight", "BF16", "[512,64]", str(512 * 64 * 2),
                                            "model.safetensors"])

    def test_a_fit_says_of_what_it_is(self):
        lengths = ["--prompt", 1000, "--response", 200, "--rollouts", 4]
        result = run("model", "inspect", "qwen3-8b", "--fit", "--device-memory", "80GB", *lengths)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[0], "qwen3-8b: 8.19G parameters; a group of 4 rollouts, prompt 1000, response 200")
        self.assertEqual(lines[1], "device: 80.0 GiB, of which a server leaves 1/16 to the runtime")
        self.assertEqual([line.split()[:2] for line in lines[4:]], [[dtype, states] for dtype in ("fp32", "bf16")
                                                                     for states in ("device", "host")])
        records = [json.loads(line) for line in
                   run("model", "inspect", "qwen3-8b", "--fit", "-o", "json", *lengths).stdout.splitlines()]
        self.assertEqual([record["fits"] for record in records], ["-"] * 4, "no device is given")
        self.assertEqual({record["usable_bytes"] for record in records}, {None})
        parameters = 8_190_735_360  # of Qwen3-8B
        for record, element in zip(records, (4, 4, 2, 2)):
            self.assertGreaterEqual(record["state_bytes"] + record["host_bytes"],
                                    parameters * (16 if element == 4 else 18), "weights, gradients, moments, masters")

    def test_a_fit_of_more_positions_than_the_model_has_is_refused(self):
        self.assert_refused(["model", "inspect", "qwen3-8b", "--fit", "--prompt", "40000", "--response", "961"],
                            ["--prompt 40000 and --response 961 are 40961 tokens; the model has 40960 positions"])

    def test_a_trace_is_not_checked_by_a_configuration_that_is_none(self):
        self.make("a.jsonl")
        (self.directory / "run.yaml").write_text("dtype: fp9\n")
        self.assert_refused(["trace", "check", "a.jsonl", "--config", "run.yaml"], ["run.yaml", "dtype", "fp9"])

    def test_a_truncated_model_names_file_and_exits_with_2(self):
        run("model", "init", self.directory / "m")
        weights = self.directory / "m/model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        result = run("model", "inspect", self.directory / "m")
        self.assertEqual(result.returncode, 2)
        self.assertIn("model.safetensors", result.stderr)

    def test_output_that_cannot_be_written_is_an_error(self):
        """A full disk must not leave half a plan.json behind an exit of 0."""
        self.make("a.jsonl")
        for arguments in (["trace", "stat", "a.jsonl"], ["trace", "stat", "a.jsonl", "-o", "json"], ["--version"], ["--help"],
                          ["completion", "bash"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([BIN / "stemma", *arguments], cwd=self.directory, stdout=full, stderr=subprocess.PIPE,
                                        text=True, timeout=60)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertIn("error: stdout cannot be written", result.stderr)

    def test_numbers_that_wrap_or_overflow_are_refused(self):
        self.make("a.jsonl")
        for arguments, words in (
                (["trace", "make", "b.jsonl", "--vocab", "3000000000"], ["--vocab", "from 1 to 2147483648"]),
                (["trace", "make", "b.jsonl", "--groups", "0"], ["--groups", "from 1"]),
                (["plan", "a.jsonl", "--line", "18446744073709551616"], ["--line", "from 1"]),
                (["replay", "a.jsonl", "--limit", "-3"], ["--limit", "from 1"]),
                (["model", "init", "m", "--shard-bytes", "-1"], ["--shard-bytes", "20GB"]),
                (["model", "inspect", "qwen3-8b", "--fit", "--device-memory", "-5"], ["--device-memory", "20GB"])):
            result = run(*arguments, cwd=self.directory)
            self.assertEqual((result.returncode, result.stdout), (2, ""), f"{arguments}: {result.stderr}")
            self.assertEqual([word for word in words if word not in result.stderr], [], result.stderr)

    def assert_refused(self, arguments, words):
        result = run(*arguments, cwd=self.directory)
        self.assertEqual((result.returncode, result.stdout), (2, ""), f"{arguments}: {result.stderr}")
        self.assertEqual([word for word in words if word not in result.stderr], [], f"{arguments}: {result.stderr}")
        self.assertLess(len(result.stderr), 250, "what a library says of its types is no help")

    def test_values_that_are_none_are_named_with_those_that_are(self):
        self.make("a.jsonl")
        server = ["--server", "127.0.0.1:1"]
        for arguments, words in (
                (["status", *server, "-o", "yaml"], ["--output", '"yaml" is not one of table, json']),
                (["status", *server, "-o", "1"], ["--output", '"1" is not one of table, json']),
                (["status", *server, "--timeout", "0"], ["--timeout", '"0"', "from 0.001 to"]),
                (["replay", "a.jsonl", *server, "--schedule", "2"], ["--schedule", '"2" is not one of auto, reuse, dense']),
                (["replay", "a.jsonl", *server, "--lr-schedule", "1"], ["--lr-schedule", "constant, linear, cosine"]),
                (["replay", "a.jsonl", *server, "--retries", "-1"], ["--retries", '"-1"', "whole number from 0 to 1000000"]),
                (["replay", "a.jsonl", *server, "--warmup-steps", "x"], ["--warmup-steps", '"x"', "whole number from 0"]),
                (["replay", "a.jsonl", *server, "--total-steps", "9"], ["--total-steps 9", "--lr-schedule linear or cosine"]),
                (["model", "init", "m", "--eos-token-id", "-1"], ["--eos-token-id", '"-1"', "from 0 to 2147483647"]),
                (["model", "init", "m", "--dtype", "9"], ["--dtype", '"9"', "bfloat16"]),
                (["model", "init", "m", "--seed", "-1"], ["--seed", '"-1"', "from 0"]),
                (["model", "inspect", "qwen3-8b", "--tensors", "--fit"], ["--fit", "--tensors", "one of the two"]),
                (["local", "--model", "m", "--workers", "0"], ["--workers", '"0"', "from 1 to 4096"]),
                (["local", "--model", "m", "--device", "tpu"], ["--device", '"tpu" is not one of cpu, cuda']),
                (["completion", "fish"], ['"fish" is not one of bash, zsh']),
                (["trace", "make", "b.jsonl", "--vocab", "9", "--n", "0"], ["--n", '"0"', "from 1 to 2147483647"]),
                (["trace", "make", "b.jsonl", "--vocab", "9", "--response-len", "0"], ["--response-len", "from 1 up"]),
                (["trace", "make", "b.jsonl", "--vocab", "9", "--prompt-len", "uniform:5:2"], ["--prompt-len", "LOW is 5"]),
                (["trace", "make", "b.jsonl", "--vocab", "9", "--prompt-len", "lognormal:200:1e308:1024"],
                 ["--prompt-len", "SIGMA is 1e308, at most 10"])):
            self.assert_refused(arguments, words)

    def test_files_that_are_missing_or_in_the_way_are_errors_of_usage(self):
        self.make("a.jsonl")
        (self.directory / "folder").mkdir()
        server = ["--server", "127.0.0.1:1"]
        for arguments, words in (
                (["checkpoint", "save", *server, "--client-state", "none"], ["--client-state", "none: No such file"]),
                (["checkpoint", "load", *server, "--client-state-out", "none/x"], ["--client-state-out", "none/x: No such file"]),
                (["trace", "make", "a.jsonl", "--vocab", "9"], ["a.jsonl: it is there already"]),
                (["trace", "make", "none/a.jsonl", "--vocab", "9"], ["none/a.jsonl: No such file"]),
                (["bound", "none"], ["none: No such file"]), (["bound", "folder"], ["folder: not a regular file"])):
            self.assert_refused(arguments, words)
        secret = self.directory / "secret"
        secret.write_text("")
        secret.chmod(0)
        if os.geteuid() != 0:  # to whom nothing is denied
            self.assert_refused(["bound", "secret"], ["secret: Permission denied"])

    def test_an_option_before_its_command_is_told_where_it_belongs(self):
        for arguments, words in (
                (["--server", "127.0.0.1:1", "status"], ["stemma: options stand behind the command",
                                                         "`stemma status --server HOST:PORT`"]),
                (["--server=127.0.0.1:1", "status"], ["`stemma status --server HOST:PORT`"]),
                (["checkpoint", "--server", "127.0.0.1:1", "list"], ["`stemma checkpoint list --server HOST:PORT`"]),
                (["--sevrer", "127.0.0.1:1", "status"], ['unknown option "--sevrer"'])):
            self.assert_refused(arguments, words)
        self.assertEqual(run("--help", "status").returncode, 0)

    def test_an_address_has_no_scheme(self):
        self.assert_refused(["status", "--server", "http://127.0.0.1:1/"],
                            ["--server", '"http://127.0.0.1:1/"', "without http://, as 127.0.0.1:1\n"])

    def test_output_that_is_no_terminal_has_no_escapes(self):
        self.make("a.jsonl")
        for arguments in (["trace", "stat", "a.jsonl"], ["doctor", "--no-self-check"]):
            result = run(*arguments, cwd=self.directory, env={"TERM": "xterm"})
            self.assertFalse(has_escape(result.stdout + result.stderr))

    def test_doctor_looks_at_the_disk_of_a_folder_that_a_server_would_make(self):
        for data in ("new", "new/deeper", str(self.directory / "new"), "."):
            result = run("doctor", "--no-self-check", "--data", data, "-o", "json", cwd=self.directory)
            disk = [check for check in map(json.loads, result.stdout.splitlines()) if check["check"] == "disk"]
            self.assertIn(disk[0]["state"], ("ok", "warning"), result.stdout)
            self.assertFalse((self.directory / "new").exists())

    def test_doctor_says_which_meshes_it_cannot_run(self):
        for arguments, words in ((["--mesh", "tp=3"], ["tp=3", "tiny model", "4 attention heads", "nearest mesh"]),
                                 (["--mesh", "pp=5"], ["5 stages", "4 layers"]),
                                 (["--mesh", "dp=17"], ["17 ranks", "at most 16", "smaller mesh"]),
                                 (["--mesh", "dp=4096,pp=4,cp=4096,tp=4"], ["ranks, more than 4096"]),
                                 (["--mesh", "ap=2"], ["--mesh ap=2", "axis"]), (["--mesh", "ep=2"], ["ep: 2 does not divide tp"]),
                                 (["--mesh", "dp=0"], ["--mesh dp=0", "from 1"]),
                                 (["--mesh", ""], ["--mesh"]),
                                 (["--mesh", "dp=2", "--no-self-check"], ["--mesh", "--no-self-check", "one of the two"])):
            result = run("doctor", *arguments, cwd=self.directory)
            self.assertEqual((result.returncode, result.stdout), (2, ""), f"{arguments}: {result.stderr}")
            self.assertEqual([word for word in words if word not in result.stderr], [], result.stderr)

    def on_terminal(self, environment):
        """`doctor --no-self-check` with a terminal as stdout and stderr."""
        leader, follower = pty.openpty()
        process = subprocess.Popen([BIN / "stemma", "doctor", "--no-self-check"], stdout=follower, stderr=follower,
                                   env={**os.environ, "TERM": "xterm", **environment})
        os.close(follower)
        text = b""
        try:
            while chunk := os.read(leader, 4096):
                text += chunk
        except OSError:  # the other end is closed
            pass
        process.wait()
        os.close(leader)
        return text.decode()

    def test_no_color_switches_the_bold_header_of_a_terminal_off(self):
        self.assertTrue(has_escape(self.on_terminal({"NO_COLOR": ""})))
        self.assertFalse(has_escape(self.on_terminal({"NO_COLOR": "1"})))
        self.assertFalse(has_escape(self.on_terminal({"TERM": "dumb"})))


if __name__ == "__main__":
    unittest.main()
