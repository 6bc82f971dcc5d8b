"""Commands against a server that the test plays: what is sent, what is printed, how it ends."""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import tempfile
import unittest

import grpc

from cli_testing import BIN, DEADLINE_S, GOLDEN, FakeServer, Process, abort, has_escape, run, training_pb2


class CliReplayTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.server = FakeServer()
        self.addCleanup(self.server.stop)
        self.trace = self.directory / "trace.jsonl"
        result = run("trace", "make", self.trace, "--seed", 1, "--steps", 3, "--vocab", 64, "--lr", "1e-3", "--n", 2,
                     "--groups", 2, "--prompt-len", "fixed:6", "--response-len", "fixed:3")
        self.assertEqual(result.returncode, 0, result.stderr)

    def call(self, *arguments, code=0):
        result = run(*arguments, "--server", self.server.address)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def golden(self, name, text):
        path = GOLDEN / name
        text = text.replace(self.server.address, "ADDRESS")
        text = re.sub("trace-[0-9a-f]{16}", "trace-DIGEST", text)
        if os.environ.get("STEMMA_UPDATE_GOLDEN"):
            path.write_text(text)
        self.maxDiff = None
        self.assertEqual(text, path.read_text())

    def ids(self):
        return [header.request.request_id for header in self.server.headers]

    def test_tables_and_json_are_those_of_the_golden_files(self):
        self.golden("replay.txt", self.call("replay", self.trace).stdout)
        self.golden("replay.jsonl", self.call("replay", self.trace, "--run-id", "again", "-o", "json").stdout)
        self.golden("plan.txt", self.call("plan", self.trace, "--line", 3).stdout)
        self.golden("plan.json", self.call("plan", self.trace, "-o", "json").stdout)
        self.golden("status.txt", self.call("status").stdout)
        self.golden("requests.jsonl", self.call("requests", "list", "-o", "json").stdout)
        self.golden("request.txt", self.call("requests", "get", "again/2").stdout)
        self.golden("logprob.txt", self.call("logprob", self.trace, "--line", 2).stdout)
        self.golden("verify.txt", self.call("verify", self.trace, "--line", 2).stdout)
        self.golden("verify.json", self.call("verify", self.trace, "-o", "json").stdout)

    def test_a_verification_beyond_its_tolerance_ends_with_1(self):
        self.server.error_norm = 1e-3  # 5e-4 of the norm: above half of fp32's digits
        result = self.call("verify", self.trace, code=1)
        self.assertIn("error: the gradients are 0.0005 of the dense one apart, more than the tolerance of 0.000244", result.stderr)
        self.assertIn("within_tolerance", result.stdout)
        self.call("verify", self.trace, "--tolerance", "6e-4")
        self.server.error_norm = float("nan")
        self.call("verify", self.trace, "--tolerance", "1e9", code=1)

    def test_a_verification_sends_one_step_of_the_line(self):
        header = {"loss": {"loss_mode": "gpg", "loss_agg_mode": "token-mean", "temperature": 1.0},
                  "adam": {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "max_grad_norm": 1.0},
                  "ppo_mini_batch_size": 2, "ppo_epochs": 3, "shuffle": True, "seed": 5, "return_log_probs": True, "trace_step": 1}
        groups = [{"uid": f"g{i}", "prompt_tokens": [5, 6], "rollouts": [{"rollout_id": f"g{i}/0", "response_tokens": [7], "advantage": 1.0}]}
                  for i in range(3)]
        trace = self.directory / "steps.jsonl"
        trace.write_text(json.dumps({"schema": "stemma.trace.v1"}) + "\n" + json.dumps({"header": header, "groups": groups}) + "\n")
        self.call("verify", trace)
        self.call("verify", trace, "--groups", 1)
        self.call("verify", trace, "--groups", 9)
        self.assertEqual([[group.uid for group in groups] for _, groups in self.server.verified], [["g0", "g1"], ["g0"], ["g0", "g1", "g2"]])
        for sent, _ in self.server.verified:
            for field in ("ppo_mini_batch_size", "ppo_epochs", "seed", "trace_step"):
                self.assertFalse(sent.HasField(field), field)
            self.assertFalse(sent.shuffle or sent.return_log_probs)
            self.assertEqual(sent.loss.loss_mode, "gpg")

    def test_status_in_json_has_the_hardware_and_the_kernels_that_are_off(self):
        status = json.loads(self.call("status", "-o", "json").stdout)
        self.assertEqual([rank["device_name"] for rank in status["ranks"]], ["NVIDIA H200", None])
        self.assertEqual(status["kernels_off"],
                         [{"rank": 0, "kernel": "attention", "reason": "dq_HTE: error 0.4, at most 0.03"}])

    def test_log_probs_are_of_the_weights_that_are_named(self):
        for weights, wanted in (("policy", -1.5), ("step-00000100", -2.5)):
            rows = self.call("logprob", self.trace, "--line", 2, "--weights", weights, "-o", "json").stdout.splitlines()
            self.assertEqual({json.loads(row)["mean_log_prob"] for row in rows}, {wanted})

    def test_a_rerun_sends_the_same_ids_and_steps_no_more(self):
        self.call("replay", self.trace)
        again = self.call("replay", self.trace, "-o", "json")
        self.assertEqual(self.ids()[:3], self.ids()[3:])
        self.assertEqual(len(set(self.ids())), 3)
        self.assertEqual(self.server.step, 3)
        self.assertTrue(all(json.loads(line)["replayed"] for line in again.stdout.splitlines()))

    def test_start_and_limit_choose_requests_without_changing_their_ids(self):
        self.call("replay", self.trace)
        self.call("replay", self.trace, "--start", 2, "--limit", 1)
        self.assertEqual(self.ids()[3], self.ids()[1])
        self.call("replay", self.trace, "--start", 4, code=2)

    def test_a_broken_line_is_reported_before_anything_is_sent(self):
        lines = self.trace.read_text().splitlines()
        lines[3] = lines[3].replace('"advantage":', '"advantge":', 1)
        self.trace.write_text("\n".join(lines) + "\n")
        result = self.call("replay", self.trace, code=2)
        self.assertIn("line 4", result.stderr)
        self.assertIn("advantge", result.stderr)
        self.assertEqual(self.server.headers, [])
        all_lines = self.call("logprob", self.trace, code=2)
        self.assertEqual((all_lines.stdout, all_lines.stderr), ("", result.stderr))
        for command in ("logprob", "plan"):  # which read no more than they are asked for
            self.assertEqual(self.call(command, self.trace, "--line", 4, code=2).stderr, result.stderr)
            self.assertNotEqual(self.call(command, self.trace, "--line", 3).stdout, "")

    def test_the_learning_rate_follows_the_curve_of_the_whole_trace(self):
        schedule = ["--lr-schedule", "linear", "--warmup-steps", 1, "--total-steps", 3, "--min-lr-ratio", 0.5]
        self.call("replay", self.trace, *schedule)
        self.call("replay", self.trace, *schedule, "--start", 3)
        rates = [header.adam.learning_rate for header in self.server.headers]
        for rate, expected in zip(rates, [1e-3, 1e-3, 0.75e-3, 0.75e-3]):
            self.assertAlmostEqual(rate, expected, delta=1e-18)  # roundings of products near 1e-3
        self.call("replay", self.trace, "--lr-schedule", "cosine", code=2)

    def test_the_schedule_of_every_request_is_overridden(self):
        self.call("replay", self.trace, "--schedule", "dense", "--limit", 1)
        self.call("replay", self.trace, "--run-id", "x", "--limit", 1)
        self.assertEqual(self.server.headers[0].request.schedule, 3)
        self.assertFalse(self.server.headers[1].request.HasField("schedule"))

    def expected_file(self, loss, *more):
        path = self.directory / "expected.jsonl"
        header = {"schema": "stemma.expected.v1", "loss": {"relative": 1e-6}, "grad_norm": {"absolute": 0.01}}
        steps = [{"line": 2 + i, "k": 0, "loss": loss / (1 + i), "grad_norm": 2.005} for i in range(3)]
        path.write_text("".join(json.dumps(line) + "\n" for line in [header, *steps, *more]))
        return path

    def verify(self, *arguments, code, expected=None):
        """Returns what a replay that compares says on stderr, and its report."""
        report = self.directory / "report.json"
        result = self.call("replay", self.trace, "--verify", expected or self.expected_file(0.5), "--report", report,
                           *arguments, code=code)
        return result.stderr, json.loads(report.read_text())

    def test_verify_accepts_what_is_within_the_tolerances_only(self):
        self.call("replay", self.trace, "--verify", self.expected_file(0.5))
        result = self.call("replay", self.trace, "--verify", self.expected_file(0.50001), code=1)
        self.assertIn("line 2 step 0: loss is 0.5, expected 0.50001", result.stderr)
        self.call("replay", self.trace, "--verify", self.trace, code=2)

    def test_what_is_verified_was_compared(self):
        said, report = self.verify(code=0)
        self.assertIn("3 of 3 as expected", said)
        self.assertEqual((report["verified"], report["differences"]), (True, []))
        more = {"line": 3, "k": 1, "loss": 0.5, "grad_norm": 2}
        said, report = self.verify(code=1, expected=self.expected_file(0.5, more))
        self.assertIn("3 of 4 as expected", said)
        self.assertIn("1 of 4 steps differ from", said)
        self.assertEqual((report["verified"], report["differences"]), (False, ["line 3 step 1: did not come"]))
        _, report = self.verify("--limit", 1, code=0, expected=self.expected_file(0.5, more))
        self.assertTrue(report["verified"], "line 3 was not submitted")

    def test_a_replay_that_ends_early_has_verified_nothing(self):
        def go_away(header, context):
            if len(self.server.headers) == 3:
                abort(context, grpc.StatusCode.UNAVAILABLE, "it stops", "DRAINING")

        self.server.fail = go_away
        said, report = self.verify("--retries", 0, code=4)
        self.assertIn("2 of 2 as expected", said)
        self.assertFalse(report["verified"])
        self.assertIn("it stops", report["error"])

    def test_what_is_rolled_back_is_not_verified(self):
        def roll_back(header, context):
            abort(context, grpc.StatusCode.FAILED_PRECONDITION, "its weights are gone", "ROLLED_BACK",
                  metadata={"lineage": "l2", "step": "0"})

        self.server.fail = roll_back
        said, report = self.verify("--follow-lineage", code=1)
        self.assertIn("0 of 3 as expected", said)
        self.assertEqual((report["verified"], report["requests_rolled_back"]), (False, 3))
        self.assertEqual(report["differences"], [f"line {line} step 0: did not come" for line in (2, 3, 4)])
        expected = self.expected_file(0.5)
        expected.write_text("".join(expected.read_text().splitlines(keepends=True)[:2]))
        _, report = self.verify("--follow-lineage", "--start", 2, "--limit", 1, code=1, expected=expected)
        self.assertEqual((report["verified"], report["differences"]), (False, ["line 3: was rolled back"]))

    def test_a_trace_whose_name_is_no_utf8_has_its_report(self):
        trace = self.directory / os.fsdecode(b"tr\xff.jsonl")
        self.trace.rename(trace)
        report = self.directory / "report.json"
        self.call("replay", trace, "--report", report, "-o", "json")
        written = json.loads(report.read_text())
        self.assertEqual((written["trace"], len(written["steps"])), (f"{self.directory}/tr\ufffd.jsonl", 3))

    def test_the_report_holds_every_step(self):
        report = self.directory / "report.json"
        self.call("replay", self.trace, "--report", report)
        content = json.loads(report.read_text())
        self.assertEqual(len(content["steps"]), 3)
        self.assertEqual(content["tokens_logical"], 3600)
        self.assertIsNone(content["error"])
        self.assertEqual(content["steps"][2]["metrics"]["actor/grad_norm"], 2.0)

    def test_a_refused_request_exits_with_its_code_and_shows_reason_and_field(self):
        violation = ("groups[0].prompt_tokens", "token 70 is not below 64")
        self.server.fail = lambda header, context: abort(context, grpc.StatusCode.INVALID_ARGUMENT, "1 problem",
                                                         "INVALID_REQUEST", violations=[violation])
        result = self.call("replay", self.trace, code=64 + 3)
        self.assertIn("reason: INVALID_REQUEST", result.stderr)
        self.assertIn("groups[0].prompt_tokens: token 70 is not below 64", result.stderr)
        self.assertEqual(len(self.server.headers), 1)

    def test_a_server_that_was_away_gets_the_request_again_with_its_id(self):
        def fail_once(header, context):
            self.server.fail = None
            abort(context, grpc.StatusCode.UNAVAILABLE, "a worker was lost", "ATTEMPTS_EXHAUSTED", retry_s=1)

        self.server.fail = fail_once
        self.call("replay", self.trace, "--limit", 1)
        self.assertEqual(len(self.ids()), 2)
        self.assertEqual(len(set(self.ids())), 1)

    def test_retries_end(self):
        self.server.fail = lambda header, context: abort(context, grpc.StatusCode.UNAVAILABLE, "it stops", "DRAINING")
        self.call("replay", self.trace, "--retries", 1, code=4)
        self.assertEqual(len(self.server.headers), 2)

    def test_a_server_that_starts_is_waited_for_and_uses_up_no_retry(self):
        def fail_twice(header, context):
            if len(self.server.headers) == 2:
                self.server.fail = None
            abort(context, grpc.StatusCode.UNAVAILABLE, "no worker has loaded the model yet", "STARTING")

        self.server.fail = fail_twice
        result = self.call("replay", self.trace, "--limit", 1, "--retries", 0)
        self.assertEqual(len(self.server.headers), 3)
        self.assertEqual(result.stderr.count("no worker has loaded the model yet"), 1)

    def test_a_request_that_failed_later_has_the_code_of_its_failure(self):
        failed = training_pb2.RequestStatus(request_id="r", state=training_pb2.FAILED)
        failed.failure.code = 9
        failed.failure.reason = "NONFINITE_GRADIENT"
        failed.failure.message = "wave 3"
        self.server.outcomes["r"] = failed
        result = self.call("requests", "wait", "r", code=64 + 9)
        self.assertIn("reason: NONFINITE_GRADIENT", result.stderr)
        self.call("requests", "get", "r")
        self.call("requests", "cancel", "unknown", code=64 + 5)

    def test_a_request_that_was_cancelled_says_how_far_it_came(self):
        self.server.outcomes["r"] = training_pb2.RequestStatus(request_id="r", state=training_pb2.CANCELLED, steps_applied=1,
                                                               steps_total=3)
        result = self.call("requests", "wait", "r", code=64 + 1)
        self.assertIn("request r was cancelled after 1 of 3 steps", result.stderr)
        self.assertIn("CANCELLED", self.call("requests", "cancel", "r").stdout)

    def test_a_model_that_is_not_served_exits_with_4(self):
        self.server.state = training_pb2.ModelInfo.LOADING
        result = self.call("status", code=4)
        self.assertIn("LOADING", result.stderr)

    def test_export_prints_the_path_alone(self):
        result = self.call("export", "step-3", "--dtype", "float64")
        self.assertEqual(result.stdout, "/data/exports/step-3\n")
        self.assertEqual(result.stderr, "")
        self.assertEqual(json.loads(self.call("export", "step-3", "-o", "json").stdout)["path"], "/data/exports/step-3")

    def test_log_probs_come_as_json_lines(self):
        lines = [json.loads(line) for line in
                 self.call("logprob", self.trace, "--entropy", "-o", "json").stdout.splitlines()]
        self.assertEqual(len(lines), 3 * 2 * 2)
        self.assertEqual(lines[0]["log_probs"], [-1.5, -1.5, -1.5])
        self.assertEqual(lines[0]["entropy"], [-1.5, -1.5, -1.5])

    def test_what_masked_places_hold_is_in_no_mean_and_no_distance(self):
        lines = self.trace.read_text().splitlines()
        request = json.loads(lines[1])
        first, second = request["groups"][0]["rollouts"]
        first.update(response_mask=[1, 0, 1], old_log_probs=[-1.0, -1e6, -1.75])
        second.pop("old_log_probs")
        second.update(response_mask=[0, 0, 0], rollout_log_probs=[-2.5, -50.0, -1.5])
        masked = self.directory / "masked.jsonl"
        masked.write_text("\n".join([lines[0], json.dumps(request)]) + "\n")
        rows = [json.loads(row) for row in self.call("logprob", masked, "-o", "json").stdout.splitlines()]
        self.assertEqual([row["max_distance_to_old"] for row in rows[:2]], [0.5, 0])
        self.assertEqual([row["mean_log_prob"] for row in rows[:2]], [-1.5, None])

    def test_a_log_prob_that_is_no_number_has_no_distance_of_0(self):
        self.server.log_prob = float("nan")
        rows = [json.loads(row) for row in self.call("logprob", self.trace, "-o", "json").stdout.splitlines()]
        self.assertEqual({row["max_distance_to_old"] for row in rows}, {None})

    def test_made_log_probs_are_the_servers_when_there_is_one(self):
        made = self.directory / "made.jsonl"
        self.call("trace", "make", made, "--old-noise", 0, "--groups", 1, "--n", 1, "--response-len", "fixed:2")
        rollout = json.loads(made.read_text().splitlines()[1])["groups"][0]["rollouts"][0]
        self.assertEqual(rollout["old_log_probs"], [-1.5, -1.5])

    def test_a_large_group_travels_in_messages_of_four_mebibytes(self):
        large = self.directory / "large.jsonl"
        run("trace", "make", large, "--vocab", 64, "--groups", 1, "--n", 12, "--prompt-len", "fixed:10",
            "--response-len", "fixed:100000", "--base64")
        self.call("replay", large)
        self.assertLessEqual(self.server.max_part_bytes, 4 << 20)
        self.assertGreater(self.server.max_part_bytes, 2 << 20)

    def test_a_replay_holds_the_server_to_the_lineage_that_it_had_at_the_start(self):
        def lose_after_one(header, context):
            if len(self.server.headers) == 2:
                self.server.lineage, self.server.step = "l2", 0
            if header.request.HasField("expected_lineage") and header.request.expected_lineage != self.server.lineage:
                abort(context, grpc.StatusCode.ABORTED, "another lineage", "LINEAGE_MISMATCH")

        self.server.fail = lose_after_one
        result = self.call("replay", self.trace, code=64 + 10)
        self.assertEqual([header.request.expected_lineage for header in self.server.headers], ["l1", "l1"])
        self.assertIn("began with lineage l1 and saw steps up to 1", result.stderr)
        self.server.headers.clear()
        self.server.lineage, self.server.step = "l1", 0
        result = self.call("replay", self.trace, "--run-id", "x", "--follow-lineage")
        self.assertFalse(any(header.request.HasField("expected_lineage") for header in self.server.headers))
        self.assertIn("going on at step 1 of lineage l2; steps up to 1 were seen of lineage l1", result.stderr)
        self.assertEqual(len(self.server.headers), 3)

    def test_a_replay_that_follows_reports_a_request_that_is_rolled_back_and_goes_on(self):
        def roll_back(header, context):
            if len(self.server.headers) == 2:
                self.server.lineage, self.server.step = "l2", 0
                abort(context, grpc.StatusCode.FAILED_PRECONDITION, "its weights are gone", "ROLLED_BACK",
                      metadata={"lineage": "l2", "step": "0"})

        self.server.fail = roll_back
        report = self.directory / "report.json"
        result = self.call("replay", self.trace, "--follow-lineage", "--report", report)
        self.assertIn("line 3: its weights are gone", result.stderr)
        self.assertIn("going on at step 0 of lineage l2", result.stderr)
        self.assertIn("1 requests rolled back", result.stderr)
        written = json.loads(report.read_text())
        self.assertEqual((written["requests_rolled_back"], written["lineage"], len(written["steps"])), (1, "l2", 2))
        self.assertEqual([step["lineage"] for step in written["steps"]], ["l1", "l2"])

    def test_ctrl_c_stops_after_the_running_request_and_a_rerun_goes_on(self):
        self.server.proceed.clear()
        with Process(BIN / "stemma", "replay", self.trace, "--server", self.server.address) as replay:
            self.assertTrue(self.server.received.wait(DEADLINE_S))
            replay.send(signal.SIGINT)
            self.server.proceed.set()
            code, out, err = replay.finish()
        self.assertEqual(code, 5, err)
        self.assertEqual(len(out.splitlines()), 2)  # header and one step
        self.assertEqual(self.server.step, 1)
        self.call("replay", self.trace)
        self.assertEqual(self.server.step, 3)

    def test_a_second_ctrl_c_leaves_at_once(self):
        self.server.proceed.clear()
        with Process(BIN / "stemma", "replay", self.trace, "--server", self.server.address) as replay:
            self.assertTrue(self.server.received.wait(DEADLINE_S))
            replay.send(signal.SIGINT)
            self.assertIn("once more", replay.process.stderr.readline() + replay.process.stderr.readline())
            replay.send(signal.SIGINT)
            code, _, _ = replay.finish()
        self.server.proceed.set()
        self.assertEqual(code, 5)

    def test_the_progress_bar_is_drawn_on_a_terminal_only(self):
        self.assertFalse(has_escape(self.call("replay", self.trace).stderr))
        leader, follower = pty.openpty()
        subprocess.run([BIN / "stemma", "replay", self.trace, "--server", self.server.address], stderr=follower,
                       stdout=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}, timeout=DEADLINE_S, check=True)
        os.close(follower)
        text = os.read(leader, 65536).decode()
        os.close(leader)
        self.assertIn("2/3", text)
        self.assertTrue(has_escape(text))


if __name__ == "__main__":
    unittest.main()
