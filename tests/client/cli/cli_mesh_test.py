"""stemma mesh: the table and the object against the planner's own words, and what is wrong in one clear message each.

To renew the golden file after a wanted change: STEMMA_UPDATE_GOLDEN=1 and run this test."""

import json
import os
import pathlib
import shutil
import tempfile
import unittest

from cli_testing import BIN, GOLDEN, make_model_and_trace, run

_REFUSED = 64 + 8  # RESOURCE_EXHAUSTED


class CliMeshTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        make_model_and_trace(cls.directory)

    def mesh(self, *arguments, ranks=8, model="tiny", trace="trace.jsonl", device="h200"):
        given = [("--ranks", ranks), ("--model", model), ("--trace", trace), ("--device", device)]
        return run("mesh", *(word for pair in given if pair[1] is not None for word in pair), *arguments,
                   cwd=self.directory, env={"TMPDIR": str(self.directory)})

    def answer(self, *arguments, **given):
        result = self.mesh("-o", "json", *arguments, **given)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_the_table_is_that_of_the_golden_file(self):
        parts = []
        for arguments, given in ((("--dtype", "bf16"), {"model": "qwen3-8b"}),
                                 (("--dtype", "bf16", "--requests", "2", "--link-bytes-per-s", "4e11",
                                   "--link-latency-us", "10"), {"model": "llama3.1-70b", "device": "h100"}),
                                 ((), {"ranks": 1})):
            result = self.mesh(*arguments, **given)
            self.assertEqual(result.returncode, 0, result.stderr)
            parts.append(result.stdout)
        text, golden = "\n".join(parts), GOLDEN / "mesh.txt"
        if os.environ.get("STEMMA_UPDATE_GOLDEN"):
            golden.write_text(text)
        self.maxDiff = None
        self.assertEqual(text, golden.read_text())

    def test_the_object_has_what_the_table_is_made_of(self):
        answer = self.answer()
        self.assertEqual((answer["model"], answer["trace"], answer["ranks"]), ("tiny", "trace.jsonl", 8))
        self.assertEqual((answer["device"], answer["device_bytes"]), ("h200", 141 * 10**9))
        self.assertEqual((answer["requests"], answer["more_requests"], answer["steps"]), (3, False, 3))
        self.assertEqual(answer["tokens"], 3 * 4 * 8 * (1023 + 256))
        self.assertEqual(answer["networks"], {"inside": "nvlink4", "between": "ib-ndr", "ranks_per_host": 8})
        self.assertEqual((answer["link_bytes_per_s"], answer["link_latency_us"]), (None, None))
        meshes = answer["meshes"]
        self.assertEqual({mesh["mesh"] for mesh in meshes if mesh["cp"] == mesh["pp"] == 1},
                         {"dp=2,tp=4", "dp=4,tp=2", "dp=8", "tp=8"})
        # Two layers make two stages at most, and four heads four parts.
        impossible = {mesh["mesh"] for mesh in meshes if mesh["pp"] > 2 or mesh["tp"] > 4}
        self.assertIn("pp=8", impossible)
        possible = meshes[:-len(impossible)]
        self.assertEqual({mesh["mesh"] for mesh in meshes[-len(impossible):]}, impossible)
        self.assertEqual([mesh["rank"] for mesh in meshes], [*range(1, len(possible) + 1), *[None] * len(impossible)])
        self.assertEqual([mesh["possible"] for mesh in meshes], [True] * len(possible) + [False] * len(impossible))
        self.assertEqual([mesh["seconds"] for mesh in possible], sorted(mesh["seconds"] for mesh in possible))
        for mesh in possible:
            self.assertEqual(mesh["dp"] * mesh["pp"] * mesh["cp"] * mesh["tp"], 8)
            self.assertAlmostEqual(mesh["tokens_per_s"] * mesh["seconds"], answer["tokens"], places=3)
            self.assertEqual(mesh["bytes"], mesh["state_bytes"] + mesh["step_bytes"])
            self.assertAlmostEqual(mesh["device_share"], mesh["bytes"] / 141e9)
        reasons = {mesh["mesh"]: mesh.get("reason") for mesh in meshes}
        self.assertIn("8 ranks cannot share the model's 4 attention heads evenly", reasons["tp=8"])
        self.assertIn("4 stages are more than the model's 2 layers", reasons["dp=2,pp=4"])

    def test_only_the_first_requests_are_planned(self):
        answer = self.answer("--requests", "2")
        self.assertEqual((answer["requests"], answer["more_requests"], answer["steps"]), (2, True, 2))

    def test_networks_are_those_of_the_options(self):
        def ranked(*arguments, **given):
            answer = self.answer(*arguments, ranks=4, **given)
            return answer, {mesh["mesh"]: mesh["seconds"] for mesh in answer["meshes"] if mesh["possible"]}

        _, inside = ranked()
        answer, hosts_of_two = ranked("--ranks-per-host", "2", "--between", "ethernet-100g")
        self.assertEqual(answer["networks"], {"inside": "nvlink4", "between": "ethernet-100g", "ranks_per_host": 2})
        self.assertGreater(hosts_of_two["pp=2,tp=2"], inside["pp=2,tp=2"], "stages are on two hosts")
        self.assertLess(inside["tp=4"], hosts_of_two["tp=4"])
        self.assertLess(hosts_of_two["dp=2,tp=2"], hosts_of_two["tp=4"], "tp stays on a host")
        answer, _ = ranked("--link-latency-us", "10")
        self.assertEqual((answer["networks"], answer["link_latency_us"]), (None, 10))
        answer, _ = ranked(device=None)
        self.assertIsNone(answer["networks"], "cpu: none but those that are given")
        answer, _ = ranked("--inside", "pcie5", device=None)
        self.assertEqual(answer["networks"]["inside"], "pcie5")

    def test_the_network_decides_what_tensor_parallelism_costs(self):
        def seconds(*arguments):
            return {mesh["mesh"]: mesh["seconds"] for mesh in self.answer(*arguments, ranks=2)["meshes"]}

        def exchange(*arguments):
            return {mesh["mesh"]: mesh["exchange_s"] for mesh in self.answer(*arguments, ranks=2)["meshes"]}

        slow, fast = seconds("--link-latency-us", "1000"), seconds("--link-latency-us", "0")
        self.assertEqual(slow["dp=2"], fast["dp=2"])
        self.assertGreater(slow["tp=2"], fast["tp=2"] + 0.001)
        slow, fast = exchange("--link-bytes-per-s", "1e6"), exchange("--link-bytes-per-s", "1e9")
        self.assertAlmostEqual(slow["dp=2"], 1000 * fast["dp=2"])
        self.assertEqual((slow["tp=2"], fast["tp=2"]), (0, 0))

    def test_without_a_device_the_ranks_share_this_machine(self):
        one, four = (self.answer(device=None, ranks=ranks) for ranks in (1, 4))
        cores = len(os.sched_getaffinity(0))
        self.assertEqual((one["device"], one["threads"], four["threads"]), ("cpu", cores, max(cores // 4, 1)))
        self.assertLess(four["device_bytes"], one["device_bytes"] / 2)
        self.assertEqual(self.answer("--threads", "3", device=None, ranks=1)["threads"], 3)

    def test_threads_are_of_ranks_on_cpu(self):
        (self.directory / "threads.yaml").write_text("model: tiny\nthreads: 64\n")
        self.assertEqual(self.answer("--config", "threads.yaml")["meshes"], self.answer()["meshes"])
        self.assertEqual(self.answer("--config", "threads.yaml", device="cpu")["threads"], 64)

    def test_a_trace_whose_name_is_no_utf8_is_planned(self):
        name = os.fsdecode(b"tr\xff.jsonl")
        shutil.copy(self.directory / "trace.jsonl", self.directory / name)
        self.assertEqual(self.answer(trace=name, ranks=1)["trace"], "tr\ufffd.jsonl")

    def test_memory_is_that_of_the_options(self):
        answer = self.answer("--device-memory", "1GB", "--memory-budget", "512MB")
        self.assertEqual(answer["device_bytes"], 1 << 30)
        self.assertEqual(answer["meshes"][0]["budget_bytes"], 512 << 20)

    def test_run_yaml_names_the_model_and_its_mesh_is_no_matter(self):
        (self.directory / "run.yaml").write_text("model: tiny\ndtype: bf16\nmesh:\n  dp: 3\n")
        answer = self.answer("--config", "run.yaml", model=None)
        self.assertEqual((answer["model"], answer["dtype"]), ("run.yaml", "bf16"))
        self.assertEqual({mesh["mesh"] for mesh in answer["meshes"]}, {mesh["mesh"] for mesh in self.answer()["meshes"]})
        self.assertEqual(self.answer("--config", "run.yaml", "--dtype", "fp64")["dtype"], "fp64")

    def test_run_yaml_says_whether_parameters_are_sharded(self):
        """Half of the weights and gradients of 70B parameters are more than an H100 has."""
        def answered(sharding):
            (self.directory / "shard.yaml").write_text(f"model: llama3.1-70b\nshard_parameters: {sharding}\n")
            answer = self.answer("--config", "shard.yaml", "--dtype", "bf16", "--requests", "1", model="llama3.1-70b",
                                 device="h100")
            return {mesh["mesh"]: mesh for mesh in answer["meshes"]}

        auto, never, always = (answered(sharding) for sharding in ("auto", "off", "on"))
        self.assertTrue(auto["dp=4,tp=2"]["shard_parameters"])
        self.assertEqual(auto["dp=4,tp=2"]["exchange_s"], 0)
        self.assertEqual([mesh["shard_parameters"] for mesh in (auto["tp=8"], always["tp=8"])], [False, False])
        self.assertIn("the state of this model in bf16 needs", never["dp=4,tp=2"]["reason"])
        self.assertTrue(never["tp=8"]["possible"])
        self.assertEqual(always["dp=4,tp=2"], auto["dp=4,tp=2"])

    def test_a_model_by_its_name_leaves_no_file(self):
        self.assertEqual(self.answer(model="Qwen/Qwen3-8B")["parameters"], 8190735360)
        self.assertEqual([path for path in self.directory.iterdir() if path.name.startswith(".tmp")], [])

    def test_no_mesh_at_all_is_refused_after_the_reasons(self):
        for output in ("table", "json"):
            result = self.mesh("--device-memory", "1MB", "-o", output, ranks=2)
            self.assertEqual(result.returncode, _REFUSED, result.stderr)
            self.assertIn("no mesh of 2 ranks can run this trace", result.stderr)
            self.assertGreaterEqual(result.stdout.count("the state of this model in fp32 needs"), 2)

    def test_what_is_wrong_is_named_with_what_to_do(self):
        (self.directory / "empty.jsonl").write_text('{"schema": "stemma.trace.v1"}\n')
        (self.directory / "bad.yaml").write_text("model: tiny\nwave_sufixes: 3\n")
        run("trace", "make", "tokens.jsonl", "--vocab", 5000, cwd=self.directory)
        for arguments, given, texts in (
                ((), {"model": None}, ("--model DIR", "--config FILE")),
                ((), {"model": "qwen3-9b"}, ("qwen3-9b", "did you mean")),
                ((), {"model": "."}, ("--model: ", "config.json")),
                ((), {"trace": None}, ("--trace", "required")),
                ((), {"trace": "none.jsonl"}, ("--trace", "none.jsonl")),
                ((), {"trace": "empty.jsonl"}, ("empty.jsonl", "no request")),
                ((), {"trace": "tokens.jsonl"}, ("line 2", "prompt_tokens", "stemma trace check tokens.jsonl")),
                ((), {"ranks": None}, ("--ranks", "required")),
                ((), {"ranks": 0}, ("--ranks", "0", "1 to 4096")),
                ((), {"ranks": 4097}, ("--ranks", "4097", "1 to 4096")),
                ((), {"device": "h300"}, ("--device", "h300", "h200")),
                (("--dtype", "int8"), {}, ("--dtype", "int8", "bf16")),
                (("--requests", "0"), {}, ("--requests", "0", "1 to 4096")),
                (("--device-memory", "much"), {}, ("--device-memory", "much", "20GB")),
                (("--memory-budget", "0"), {}, ("--memory-budget", '"0"', "80GB")),
                (("--device-memory", "9000000TB"), {}, ("--device-memory", '"9000000TB"', "80GB")),
                (("--link-bytes-per-s", "0"), {}, ("--link-bytes-per-s", '"0"', "from 1000 to")),
                (("--link-latency-us", "nan"), {}, ("--link-latency-us", '"nan"', "from 0 to")),
                (("--link-latency-us", "3", "--inside", "pcie5"), {}, ("--link-latency-us", "--inside", "give either")),
                (("--threads", "2"), {}, ("--threads: is for ranks on cpu, and --device is h200: leave one of the two out",)),
                (("--inside", "token-ring"), {}, ("--inside", "token-ring", "nvlink4")),
                (("--ranks-per-host", "4"), {"device": "cpu"}, ("--ranks-per-host", "give --inside, --between or both")),
                (("--config", "none.yaml"), {}, ("none.yaml", "No such file")),
                (("--config", "bad.yaml"), {}, ("bad.yaml", "line 2", "wave_sufixes"))):
            result = self.mesh(*arguments, **given)
            self.assertEqual((result.returncode, result.stdout), (2, ""), f"{arguments} {given}: {result.stderr}")
            for text in texts:
                self.assertIn(text, result.stderr)

    def test_several_problems_are_said_at_once(self):
        (self.directory / "odd.yaml").write_text("dtype: fp8\nthreads: -1\n")
        result = self.mesh("--config", "odd.yaml")
        self.assertIn("dtype", result.stderr)
        self.assertIn("threads", result.stderr)

    def test_the_servers_binary_has_to_lie_beside_it(self):
        alone = self.directory / "alone"
        alone.mkdir()
        shutil.copy(BIN / "stemma", alone)
        result = run("mesh", "--ranks", 1, "--model", "tiny", "--trace", "trace.jsonl", cwd=self.directory,
                     binary=alone / "stemma")
        self.assertEqual(result.returncode, 1)
        self.assertIn("`stemma-server` must lie in the directory of `stemma`", result.stderr)


if __name__ == "__main__":
    unittest.main()
