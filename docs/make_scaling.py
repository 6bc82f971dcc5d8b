#!/usr/bin/env python3
"""Writes the tables of docs/scaling.md, each between its two marks, from what `stemma simulate` says.

    docs/make_scaling.py [--build DIR] [--check]

--check writes nothing, and fails where the page has other numbers. Nothing is measured here: the same program gives the same
page on every machine.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

DOCS = pathlib.Path(__file__).resolve().parent
PAGE = DOCS / "scaling.md"
# Llama3-8B, TP=2, CP=4, N=32, total length 12,288: seconds of Phases A, B, C and the whole, with Phase B compiled, and how many
# times as fast as the compiled dense baseline (the paper, Section 5, the tables of the sweep and of the phases at N=32).
PAPER = {(2048, 10240): (0.289, 55.935, 0.422, 56.646, 1.038), (6144, 6144): (0.718, 36.843, 1.237, 38.801, 1.515),
         (8192, 4096): (1.234, 28.366, 1.902, 31.505, 1.866), (10240, 2048): (1.725, 18.774, 2.716, 23.215, 2.533)}


class Simulator:
    """`stemma simulate` on traces that are made in a folder of its own."""

    def __init__(self, build, folder):
        self.stemma, self.folder = pathlib.Path(build).resolve() / "bin" / "stemma", pathlib.Path(folder)

    def trace(self, prompt, response, n, groups=1):
        path = self.folder / f"{prompt}-{response}-{n}-{groups}.jsonl"
        if not path.exists():
            self._run("trace", "make", path, "--vocab", 128, "--groups", groups, "--prompt-len", f"fixed:{prompt}", "--n", n,
                      "--response-len", f"fixed:{response}", "--base64")
        return path

    def meshes(self, model, trace, meshes, *arguments, schedule="auto"):
        config = self.folder / "run.yaml"
        config.write_text(f"model: {model}\nschedule: {schedule}\n")
        named = [word for mesh in meshes for word in ("--mesh", mesh)]
        out = self._run("simulate", "--model", model, "--config", config, "--trace", trace, "--dtype", "bf16", "-o", "json", *named,
                        *arguments)
        answers = json.loads(out)["meshes"]
        for answer in answers:
            assert answer["possible"], answer
        return answers

    def _run(self, *words):
        return subprocess.run([self.stemma, *map(str, words)], check=True, text=True, stdout=subprocess.PIPE).stdout


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def percent(part, whole):
    return f"{100 * part / whole:.1f} %"


def parts_of(answer):
    """The shares of a mesh's time, in the order of PARTS."""
    parts, seconds = answer["parts_s"], answer["seconds"]
    axis = {name: parts["wire"].get(name, 0) + parts["wait"].get(name, 0) for name in ("tp", "cp", "pp", "dp")}
    shared = axis["dp"] + parts["reduction"] + parts["agreement"] + parts["gathering"]
    return [percent(part, seconds) for part in (parts["compute"], axis["tp"], axis["cp"], axis["pp"], shared)]


PARTS = ["compute", "tp", "cp", "bubble", "dp"]


def hidden_of(answer):
    hidden = sum(answer["hidden_s"].values())
    exposed = sum(answer["parts_s"]["wire"].values()) + answer["parts_s"]["reduction"] + answer["parts_s"]["gathering"]
    return percent(hidden, hidden + exposed) if hidden + exposed > 0 else "-"


def rows_of(answers):
    return [[f"`{answer['mesh']}`", str(answer["ranks"]), f"{answer['seconds']:.2f} s", f"{answer['tokens_per_s'] / answer['ranks']:,.0f}",
             f"{answer['flops_per_s_of_rank'] / 1e12:.0f}", *parts_of(answer), hidden_of(answer), f"{answer['bytes'] / 1e9:.1f} GB"]
            for answer in answers]


HEAD = ["mesh", "ranks", "a step", "tokens/s a rank", "TFLOP/s a rank", *PARTS, "wires hidden", "bytes a rank"]


def weak(simulator):
    meshes = [f"dp={dp}" for dp in (8, 64, 512, 4096)] + [f"dp={dp},tp=2" for dp in (4, 256, 2048)] + \
             [f"dp={dp},cp=2" for dp in (4, 256, 2048)] + [f"dp={dp},pp=2" for dp in (4, 256, 2048)]
    return table(HEAD, rows_of(simulator.meshes("qwen3-8b", simulator.trace(2048, 1024, 16, groups=4), meshes, "--device", "h200",
                                                "--groups-per-copy", 4)))


def large(simulator):
    meshes = ["dp=1,pp=2,tp=8", "dp=2,pp=4,tp=8", "dp=4,pp=2,cp=2,tp=8", "dp=32,pp=4,tp=8", "dp=64,pp=2,tp=8", "dp=64,pp=2,cp=4,tp=8",
              "dp=64,pp=8,tp=8", "dp=128,pp=4,tp=8"]
    return table(HEAD, rows_of(simulator.meshes("llama3.1-70b", simulator.trace(4096, 2048, 16, groups=8), meshes, "--device", "h200",
                                                "--groups-per-copy", 8)))


def sharded(simulator):
    meshes = ["dp=8,tp=8", "dp=32,tp=2", "dp=8,cp=8", "dp=64", "dp=64,tp=8", "dp=512"]
    answers = simulator.meshes("llama3.1-70b", simulator.trace(4096, 2048, 16, groups=8), meshes, "--device", "h200",
                               "--groups-per-copy", 8)
    rows = [[*row[:2], "sharded" if answer["shard_parameters"] else "whole", *row[2:]]
            for row, answer in zip(rows_of(answers), answers)]
    return table([*HEAD[:2], "parameters", *HEAD[2:]], rows)


def paper(simulator):
    rows = []
    for (prompt, response), measured in PAPER.items():
        given = ("llama3.1-8b", simulator.trace(prompt, response, 32), ["cp=4,tp=2"], "--device", "h20")
        [reuse], [dense] = (simulator.meshes(*given, schedule=schedule) for schedule in ("reuse", "dense"))
        seconds = [reuse["phases_s"][phase] for phase in "ABC"]
        seconds.append(sum(seconds))
        cells = [f"{ours:.2f} / {theirs:.2f} s" for ours, theirs in zip(seconds, measured)]
        rows.append([f"{prompt} + {response}", *cells, f"{seconds[3] / measured[3]:.2f}", f"{dense['pass_s'] / reuse['pass_s']:.2f} / {measured[4]:.2f}"])
    return table(["prompt + response", "A", "B", "C", "together", "simulated / measured", "times as fast as dense"], rows)


def stages(simulator):
    given = ("llama3.1-8b", simulator.trace(4096, 4096, 8), ["pp=2,cp=2,tp=4"], "--device", "h20")
    rows = []
    for groups in (1, 2, 4, 16):
        [answer] = simulator.meshes(*given, "--groups-per-copy", groups)
        rows.append([str(groups), f"{answer['seconds']:.2f} s", *parts_of(answer), hidden_of(answer), f"{answer['bytes'] / 1e9:.1f} GB"])
    return table(["groups a step", "a step", *PARTS, "wires hidden", "bytes a rank"], rows)


TABLES = {"weak": weak, "large": large, "sharded": sharded, "paper": paper, "stages": stages}


def replaced(page, name, text):
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = page.split(begin)
    return before + begin + text + "\n" + end + rest.split(end)[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=DOCS.parent / "build" / "release")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(arguments.build, folder)
        made = page
        for name, make in TABLES.items():
            made = replaced(made, name, make(simulator))
    if not arguments.check:
        PAGE.write_text(made)
    elif made != page:
        sys.exit("docs/scaling.md has other numbers than stemma simulate: run docs/make_scaling.py")


if __name__ == "__main__":
    main()
