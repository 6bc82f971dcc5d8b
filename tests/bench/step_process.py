"""step_bench as a process: seconds of forward and backward of one prompt group, by the engine's own phases."""

import json
import os
import subprocess

import shapes


class StepBench:
    """The step_bench of a build on a model directory. It loads the model once, when it is asked to serve."""

    def __init__(self, build, directory, threads):
        self.command = [os.path.join(build, "tests", "step_bench"), "--model", directory, "--threads", str(threads)]
        self.process = None

    def profile(self, shape):
        """One pair with its per-op times; FLOPs by the product's formula, which must be ours."""
        output = subprocess.run(self.command + ["--shapes", str(shape), "--pairs", "1"], check=True, text=True,
                                stdout=subprocess.PIPE).stdout
        line = json.loads(output.strip().splitlines()[-1])
        for name, ours in zip(("flops_dense", "flops_reuse"), shapes.flops(shapes.SPEC, shape)):
            if abs(line[name] / ours - 1) > 1e-9:
                raise SystemExit(f"{shape}: {name} is {line[name]:.6g} in step_bench, {ours:.6g} by the formula here")
        return line

    def serve(self):
        self.process = subprocess.Popen(self.command + ["--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question):
        """Seconds of "dense P/R/N" or "reuse P/R/N"; GFLOP/s of "mm"."""
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"step_bench ended with {self.process.wait()} on {question}")
        return float(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
