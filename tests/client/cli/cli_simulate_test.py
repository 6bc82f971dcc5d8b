"""stemma simulate: the table and the object, what each option changes, and what is wrong in one clear message each.

To renew the golden file after a wanted change: STEMMA_UPDATE_GOLDEN=1 and run this test."""

import json
import os
import pathlib
import tempfile
import unittest

from cli_testing import GOLDEN, make_model_and_trace, run

_REFUSED = 64 + 8  # RESOURCE_EXHAUSTED
_RATES = ("linear attention_forward attention_backward head element merge wave parameter copy wave_backward score_block sent "
          "collective sent_context collective_context sent_stage message_stage sent_data collective_data sent_part message_part").split()


class CliSimulateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        make_model_and_trace(cls.directory)

    def simulate(self, *arguments, meshes=("dp=8",), model="tiny", trace="trace.jsonl", device="h200"):
        given = [("--model", model), ("--trace", trace), ("--device", device), *(("--mesh", mesh) for mesh in meshes)]
        return run("simulate", *(word for pair in given if pair[1] is not None for word in pair), *arguments,
                   cwd=self.directory, env={"TMPDIR": str(self.directory)})

    def answer(self, *arguments, **given):
        result = self.simulate("-o", "json", *arguments, **given)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def mesh(self, mesh, *arguments, **given):
        return self.answer(*arguments, meshes=(mesh,), **given)["meshes"][0]

    def rates(self, name, **changed):
        """A file as `stemma plan -o json` prints it, every rate 1e-9 but these."""
        path = self.directory / name
        path.write_text(json.dumps({"rates": {"from": "measured, 9 steps", **dict.fromkeys(_RATES, 1e-9), **changed}}))
        return path

    def test_the_table_is_that_of_the_golden_file(self):
        parts = []
        for arguments, given in (
                (("--dtype", "bf16", "--groups-per-copy", "4"),
                 {"model": "qwen3-8b", "meshes": ("dp=8", "dp=4,tp=2", "dp=2,pp=4", "dp=2,cp=2,tp=2", "tp=5")}),
                (("--dtype", "bf16", "--groups-per-copy", "4", "--between", "ethernet-100g"),
                 {"model": "llama3.1-70b", "device": "h100", "meshes": ("dp=4,pp=2,tp=8", "dp=64,pp=2,cp=4,tp=8")})):
            result = self.simulate(*arguments, **given)
            self.assertEqual(result.returncode, 0, result.stderr)
            parts.append(result.stdout)
        text, golden = "\n".join(parts), GOLDEN / "simulate.txt"
        if os.environ.get("STEMMA_UPDATE_GOLDEN"):
            golden.write_text(text)
        self.maxDiff = None
        self.assertEqual(text, golden.read_text())

    def test_the_parts_of_a_mesh_are_its_seconds(self):
        answer = self.answer(meshes=("dp=2,pp=2,cp=2,tp=2", "dp=1"))
        self.assertEqual([mesh["ranks"] for mesh in answer["meshes"]], [16, 1])
        self.assertEqual((answer["requests"], answer["rates"], answer["device"]), (3, "default", "h200"))
        for mesh in answer["meshes"]:
            parts = dict(mesh["parts_s"])
            whole = sum(sum(part.values()) if isinstance(part, dict) else part for part in parts.values())
            self.assertAlmostEqual(whole / mesh["seconds"], 1, places=9)
            self.assertEqual((mesh["steps"], mesh["tokens"]), (3, 3 * 4 * 8 * (1023 + 256)))
            self.assertAlmostEqual(mesh["tokens_per_s"] * mesh["seconds"], mesh["tokens"], places=3)
            self.assertEqual(mesh["bytes"], mesh["state_bytes"] + mesh["step_bytes"])
        axes, one = answer["meshes"]
        for part in (axes["parts_s"]["wire"], axes["hidden_s"], axes["sent_bytes"], axes["networks"]):
            self.assertEqual(list(part), ["tp", "cp", "pp", "dp"])
        self.assertEqual(axes["networks"], {"tp": "nvlink4", "cp": "nvlink4", "pp": "nvlink4", "dp": "ib-ndr"})
        self.assertEqual(one["sent_bytes"], {})

    def test_networks_are_those_of_the_options(self):
        def exchange(*arguments):
            return self.mesh("dp=8", *arguments)["parts_s"]["gathering"]

        near, far = exchange(), exchange("--ranks-per-host", "4")
        self.assertGreater(far, near)
        self.assertEqual(exchange("--ranks-per-host", "4", "--between", "nvlink4"), near)
        self.assertGreater(exchange("--inside", "ethernet-100g"), far)

    def test_sharded_parameters_are_gathered_while_the_phases_run(self):
        def simulate(sharding, output):
            (self.directory / "shard.yaml").write_text(f"model: tiny\nshard_parameters: {sharding}\n")
            result = self.simulate("--config", "shard.yaml", "-o", output, meshes=("dp=4,tp=2", "tp=2", "dp=8"))
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout

        whole, sharded = (json.loads(simulate(sharding, "json"))["meshes"] for sharding in ("auto", "on"))
        self.assertEqual([mesh["shard_parameters"] for mesh in whole], [False, False, False])
        self.assertEqual([mesh["shard_parameters"] for mesh in sharded], [True, False, True])
        for before, mesh in ((whole[0], sharded[0]), (whole[2], sharded[2])):
            self.assertGreater(before["parts_s"]["gathering"], 0)
            self.assertEqual(mesh["parts_s"]["gathering"], 0)
            self.assertGreater(mesh["parts_s"]["wire"]["dp"], 0)
        self.assertGreater(whole[2]["parts_s"]["reduction"], 0)
        self.assertEqual(sharded[2]["parts_s"]["reduction"], 0)
        self.assertGreater(sharded[0]["parts_s"]["reduction"], 0, "what tensor-parallel ranks add up")
        self.assertLess(sharded[2]["state_bytes"], whole[2]["state_bytes"])
        self.assertEqual(sharded[1], whole[1])
        self.assertIn("sharded  parameters of dp=4,tp=2; dp=8\n", simulate("on", "table"))
        self.assertNotIn("sharded", simulate("off", "table"))

    def test_each_copy_gets_so_many_groups(self):
        small, large = (self.mesh(f"dp={dp}", "--groups-per-copy", "4", "--requests", "1") for dp in (2, 512))
        self.assertEqual((small["steps"], large["steps"]), (1, 1))
        self.assertEqual(large["tokens"], 256 * small["tokens"])
        self.assertAlmostEqual(large["pass_s"] / small["pass_s"], 1, places=6)

    def test_measured_rates_take_the_place_of_the_default_ones(self):
        answer = self.answer("--rates", self.rates("rates.json"))
        self.assertEqual(answer["rates"], "measured, 9 steps")
        seconds = answer["meshes"][0]["seconds"]
        self.assertIsNone(answer["meshes"][0]["networks"], "the rates have them")
        slower = self.mesh("dp=8", "--rates", self.rates("slower.json", linear=2e-9))
        self.assertGreater(slower["seconds"], 1.2 * seconds)
        wired = self.mesh("dp=8", "--rates", self.rates("wired.json", sent_data=1e-8))
        self.assertGreater(wired["parts_s"]["gathering"], 5 * answer["meshes"][0]["parts_s"]["gathering"])
        self.assertAlmostEqual(wired["parts_s"]["compute"], answer["meshes"][0]["parts_s"]["compute"], places=9)
        flat = self.directory / "flat.json"
        flat.write_text(json.dumps(json.loads((self.directory / "rates.json").read_text())["rates"]))
        self.assertEqual(self.mesh("dp=8", "--rates", flat)["seconds"], seconds)

    def test_rates_of_another_device_are_said_to_be(self):
        plan = json.loads((GOLDEN / "plan.json").read_text())
        self.assertEqual(plan["device"], "NVIDIA H200")
        path = self.directory / "of.json"
        for of, device, words in (("NVIDIA H200", "h200", ""), ("NVIDIA A100-SXM4-80GB", "a100", ""), (None, "h20", ""),
                                  ("NVIDIA H200", "h20", "--device is h20"), ("cpu", "h200", "--device is h200"),
                                  ("NVIDIA H200", None, "without --device")):
            path.write_text(json.dumps({**plan, "device": of}))
            result = self.simulate("--rates", path, device=device)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("was measured on" in result.stderr, bool(words), (of, device, result.stderr))
            self.assertIn(words, result.stderr)

    def test_rates_are_read_as_stemma_plan_prints_them(self):
        """Its golden file, of a server that a test plays: all rates but that of products are 0."""
        printed = json.loads((GOLDEN / "plan.json").read_text())["rates"]
        self.assertEqual(sorted(set(printed) - {"from"}), sorted(_RATES))
        answer = self.answer("--rates", GOLDEN / "plan.json")
        parts = answer["meshes"][0]["parts_s"]
        self.assertEqual((answer["rates"], parts["reduction"], parts["apply"]), ("defaults, 3 steps measured", 0, 0))
        self.assertGreater(parts["compute"], 0)

    def test_ranks_that_share_cores_are_slower(self):
        own, shared = (self.mesh("dp=2", "--threads", "2", *cores, device="cpu") for cores in ((), ("--cores", "2")))
        self.assertAlmostEqual(shared["parts_s"]["compute"] / own["parts_s"]["compute"], 2, places=6)

    def test_4096_ranks_are_simulated(self):
        mesh = self.mesh("dp=64,pp=2,cp=4,tp=8", "--dtype", "bf16", "--groups-per-copy", "2", "--requests", "1",
                         model="llama3.1-70b")
        self.assertEqual((mesh["ranks"], mesh["possible"]), (4096, True))

    def test_more_groups_than_can_be_planned_are_refused_before_they_are_made(self):
        answer = self.answer("--groups-per-copy", "65536", "--requests", "1", meshes=("dp=2", "dp=4096"))
        few, many = answer["meshes"]
        self.assertTrue(few["possible"])
        self.assertIn("268435456 groups", many["reason"])
        self.assertIn("fewer --groups-per-copy", many["reason"])

    def test_no_mesh_at_all_is_refused_after_the_reasons(self):
        result = self.simulate(meshes=("tp=3", "pp=9"))
        self.assertEqual(result.returncode, _REFUSED, result.stderr)
        self.assertIn("none of these meshes can run this trace", result.stderr)
        self.assertIn("3 ranks cannot share", result.stdout)
        self.assertIn("9 stages are more than", result.stdout)

    def test_what_is_wrong_is_named_with_what_to_do(self):
        (self.directory / "text.json").write_text("rates")
        (self.directory / "list.json").write_text("[]")
        (self.directory / "few.json").write_text('{"rates": {"linear": 1e-9}}')
        for arguments, given, texts in (
                ((), {"model": None}, ("--model DIR", "--config FILE")),
                ((), {"meshes": ()}, ("--mesh", "required")),
                ((), {"meshes": ("dq=2",)}, ("--mesh", "dq")),
                ((), {"meshes": ("dp=2", "dp=0")}, ("--mesh", "dp")),
                ((), {"meshes": ("dp=64,tp=128",)}, ("--mesh", "8192", "4096")),
                (("--inside", "token-ring"), {}, ("--inside", "token-ring", "nvlink4")),
                (("--between", "token-ring"), {}, ("--between", "token-ring", "ib-ndr")),
                (("--ranks-per-host", "0"), {}, ("--ranks-per-host", "0", "1 to 4096")),
                (("--ranks-per-host", "4"), {"device": "cpu"}, ("--ranks-per-host", "--inside")),
                (("--groups-per-copy", "0"), {}, ("--groups-per-copy", "0", "1 to 65536")),
                (("--cores", "0"), {}, ("--cores", '"0"', "from 0.001 to")),
                (("--cores", "2"), {}, ("--cores: is for ranks on cpu, and --device is h200: leave one of the two out",)),
                (("--threads", "2"), {}, ("--threads: is for ranks on cpu", "h200")),
                (("--rates", "none.json"), {}, ("--rates", "none.json")),
                (("--rates", "text.json"), {}, ("--rates: text.json", "stemma plan -o json")),
                (("--rates", "list.json"), {}, ("--rates: list.json", "not an object")),
                (("--rates", "few.json"), {}, ("few.json", "rates.attention_forward", "missing")),
                (("--rates", self.rates("minus.json", head=-1)), {}, ("rates.head", "-1", "0 to 1000")),
                (("--rates", self.rates("zero.json", linear=0)), {}, ("rates.linear", "0"))):
            result = self.simulate(*arguments, **given)
            self.assertEqual((result.returncode, result.stdout), (2, ""), f"{arguments} {given}: {result.stderr}")
            for text in texts:
                self.assertIn(text, result.stderr)

    def test_several_problems_are_said_at_once(self):
        result = self.simulate("--rates", "none.json", meshes=("dq=1", "dp=-1"))
        for text in ("dq", "dp=-1", "none.json"):
            self.assertIn(text, result.stderr)


if __name__ == "__main__":
    unittest.main()
