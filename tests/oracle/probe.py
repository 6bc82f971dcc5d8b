"""The engine in process, one JSON line a case: the wrapper of the numerics_probe binary."""

import json
import math
import os
import subprocess

from safetensors.torch import load_file


class ProbeError(Exception):
    """The engine's answer was an error."""


class Probe:
    def __init__(self, scratch):
        self.scratch, self.count = str(scratch), 0
        binary = os.path.join(os.environ["STEMMA_BUILD_DIR"], "tests", "numerics_probe")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def run(self, model, request, schedule="REUSE", layout="PACKED", waves=0, head_chunk=0, dtype="fp64", **more):
        """(answer, tensors by name). Anything else of the case goes through `more`."""
        self.count += 1
        out = os.path.join(self.scratch, f"probe-{self.count}.safetensors")
        case = {"model": model, "dtype": dtype, "schedule": schedule, "layout": layout, "wave_suffixes": waves,
                "head_chunk_tokens": head_chunk or 512, "control": "none", "request": request, "step": 0, "apply": False,
                "out": out, **more}
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise ProbeError(f"numerics_probe died with {self.process.wait()} on case {self.count}")
        answer = json.loads(line)
        if not answer["ok"]:
            raise ProbeError(f"{answer['code']}: {answer['message']}")
        mesh = more.get("mesh", os.environ.get("STEMMA_TEST_MESH", "dp=1"))
        ranks = math.prod(int(axis.split("=")[1]) for axis in mesh.split(",") if not axis.startswith("ep="))
        assert answer["ranks"] == ranks, f"asked for {mesh}, {answer['ranks']} voted"
        tensors = load_file(out)
        os.remove(out)
        return answer, tensors

    def close(self):
        self.process.stdin.close()
        if self.process.wait(timeout=30) != 0:
            raise ProbeError(f"numerics_probe ended with {self.process.returncode}")
