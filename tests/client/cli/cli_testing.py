"""What the CLI's tests share: running the binary, generated stubs, and a server played by the test."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("STEMMA_BUILD_DIR", ROOT / "build/release")) / "bin"
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
DEADLINE_S = 60

_generated = tempfile.TemporaryDirectory(prefix="stemma-cli-stubs-")


def generate_stubs(target):
    """The wire's messages and services as Python modules below `target`."""
    from grpc_tools import protoc

    files = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto"))
    arguments = ["protoc", f"-I{ROOT / 'proto'}", f"--python_out={target}", f"--grpc_python_out={target}", *files]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed")
    for package in ("stemma", "stemma/v1"):  # a regular package, so that the Python client's does not hide it
        (pathlib.Path(target) / package / "__init__.py").touch()


generate_stubs(_generated.name)
sys.path.insert(0, _generated.name)

import grpc  # noqa: E402
from google.protobuf import any_pb2  # noqa: E402
from google.rpc import error_details_pb2, status_pb2  # noqa: E402
from stemma.v1 import plan_pb2, training_pb2, training_pb2_grpc, verification_pb2  # noqa: E402


def run(*arguments, timeout=DEADLINE_S, binary=BIN / "stemma", **kwargs):
    environment = {**os.environ, **kwargs.pop("env", {})}
    environment.pop("STEMMA_SERVER", None)
    return subprocess.run([str(binary), *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          env=environment, **kwargs)


def make_model_and_trace(directory):
    """A model `tiny`, and `trace.jsonl` of three requests of four groups for it."""
    for arguments in (("model", "init", "tiny", "--hidden", 64, "--layers", 2, "--heads", 4, "--kv-heads", 2),
                      ("trace", "make", "trace.jsonl", "--vocab", 64, "--prompt-len", "fixed:1024", "--n", 8,
                       "--response-len", "fixed:256", "--groups", 4, "--steps", 3)):
        result = run(*arguments, cwd=directory)
        assert result.returncode == 0, result.stderr


def wait_for(condition, what, timeout=DEADLINE_S):
    """Polls: the processes under test have no channel to tell us."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout} s: {what}")


def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def is_pending(pid, number):
    """Whether a signal was sent to the process and not taken yet."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"(?m)^ShdPnd:\s*(\w+)", status)[1], 16) >> (number - 1) & 1


def children_of(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def has_escape(text):
    return re.search(r"\x1b", text) is not None


def error_details(code, message, reason, violations=(), retry_s=0, metadata=None):
    """Trailing metadata as the server sends it."""
    status = status_pb2.Status(code=code.value[0], message=message)
    details = [error_details_pb2.ErrorInfo(reason=reason, domain="stemma", metadata=metadata or {})]
    if violations:
        bad_request = error_details_pb2.BadRequest()
        for field, description in violations:
            bad_request.field_violations.add(field=field, description=description)
        details.append(bad_request)
    if retry_s:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = retry_s
        details.append(retry)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return (("grpc-status-details-bin", status.SerializeToString()),)


class FakeServer(training_pb2_grpc.TrainingServiceServicer):
    """Answers as a server with one step per request would; `fail` is called first and may abort the call."""

    def __init__(self, listen="127.0.0.1:0"):
        self.state = training_pb2.ModelInfo.IDLE
        self.step = 0
        self.lineage = "l1"
        self.headers = []          # of every UpdateActor that came in whole
        self.max_part_bytes = 0
        self.log_prob = -1.5       # under the policy
        self.verified = []         # (header, groups) of every VerifyGroup
        self.error_norm = 1e-5     # of a gradient of norm 2
        self.outcomes = {}         # request_id -> RequestStatus
        self.fail = None
        self.received = threading.Event()
        self.proceed = threading.Event()
        self.proceed.set()
        self._server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", 64 << 20)])
        training_pb2_grpc.add_TrainingServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(listen)}"
        self._server.start()

    def stop(self):
        self._server.stop(None)

    def GetServerInfo(self, request, context):
        info = training_pb2.ServerInfo(version="0.0.0", api="stemma.v1", workers_connected=2, generation=3,
                                       loss_modes=["vanilla"])
        for rank in range(2):
            info.ranks.add(rank=rank, host="node-7", device=f"cuda:{rank}", pid=4100 + rank, phase=["suffix", "waiting"][rank],
                           device_name=["NVIDIA H200", ""][rank])
        info.ranks[0].kernels_off.add(kernel="attention", reason="dq_HTE: error 0.4, at most 0.03")
        info.config.model = "/models/tiny"
        info.config.dtype = "fp32"
        info.config.memory_budget_bytes = 1 << 33
        return info

    def GetModel(self, request, context):
        return training_pb2.ModelInfo(state=self.state, step=self.step, lineage=self.lineage, vocab_size=64, max_positions=128)

    def _receive(self, parts):
        header, groups = None, []
        for part in parts:
            self.max_part_bytes = max(self.max_part_bytes, part.ByteSize())
            kind = part.WhichOneof("part")
            if kind == "group":
                groups.append(part.group)
            elif kind == "more":
                groups[-1].rollouts.extend(part.more.rollouts)
            elif kind == "end":
                assert part.end.num_groups == len(groups)
                assert part.end.num_rollouts == sum(len(group.rollouts) for group in groups)
            else:
                header = getattr(part, kind)
        return header, groups

    def UpdateActor(self, request_iterator, context):
        header, groups = self._receive(request_iterator)
        self.headers.append(header)
        self.received.set()
        self.proceed.wait(DEADLINE_S)
        if self.fail:
            self.fail(header, context)
        request_id = header.request.request_id
        if header.request.validate_only:
            return training_pb2.RequestStatus(request_id=request_id, state=training_pb2.DONE, plan=self._plan(groups))
        if request_id in self.outcomes:
            repeated = training_pb2.RequestStatus()
            repeated.CopyFrom(self.outcomes[request_id])
            repeated.replayed = True
            return repeated
        self.step += 1
        status = training_pb2.RequestStatus(request_id=request_id, state=training_pb2.DONE, steps_applied=1, steps_total=1,
                                            lineage=self.lineage)
        step = status.result.steps.add(step=self.step, outcome=training_pb2.StepResult.APPLIED)
        metrics = {"actor/loss": 0.5 / self.step, "actor/grad_norm": 2.0, "prefix/tokens_logical": 1200.0,
                   "prefix/tokens_computed": 300.0, "prefix/tokens_saved": 900.0, "perf/actor/time_per_step": 0.25}
        for name, value in metrics.items():
            step.metrics[name] = value
        self.outcomes[request_id] = status
        return status

    def _plan(self, groups):
        plan = plan_pb2.PlanReport(num_steps=1, num_groups=len(groups), num_rollouts=8, rollouts_run=8, groups_reuse=1,
                                   groups_dense=1, num_clusters=1, num_waves=2, tokens_logical=1200, tokens_computed=300,
                                   flops=1e9, flops_dense=2.5e9, peak_bytes=1 << 20, budget_bytes=1 << 30,
                                   log_prob_passes=2, checkpoint_weights_bytes=1 << 20)
        plan.steps.add(num_groups=len(groups))  # the log-prob pass
        step = plan.steps.add(num_groups=len(groups))
        seconds = plan_pb2.PhaseSeconds(prefix_forward=0.25, suffix=1.5, prefix_backward=0.5)
        for rank, share in enumerate((0.75, 0.25)):
            step.ranks.add(groups=rank + 1, tokens_computed=int(300 * share), peak_bytes=(4 - rank) << 20,
                           seconds=plan_pb2.PhaseSeconds(suffix=2 * share))
        step.imbalance, step.over_bound, step.imbalance_whole = 1.5, 0.125, 2
        step.ranks[1].exchange_s, step.ranks[1].parts = 0.25, 1
        step.split_groups.add(uid="g0", ranks=[1, 0], rollouts=[3, 1], bytes=3 << 20, seconds=0.125)
        for rank, pipeline_s in enumerate((1.25, 0.5)):
            step.ranks[rank].pipeline_s, step.ranks[rank].bubble_s = pipeline_s, pipeline_s / 5
            for stage in range(2):
                step.ranks[rank].stages.add(layers=3 - stage, seconds=pipeline_s * (0.8 - stage / 4),
                                            idle_s=pipeline_s * (0.2 + stage / 4), peak_bytes=(4 - stage) << 20,
                                            host_bytes=stage << 20)
        step.pipeline_s = plan.pipeline_s = 1.25
        cluster = step.clusters.add(reuse_uids=["g0"], dense_uids=["g1"], wave_sizes=[4, 4], reason="reuse: saves 60%",
                                    prefix_policy=plan_pb2.S1, suffix_policy=plan_pb2.S0, prefix_block_rows=512,
                                    offload_prefix=True, memory_reason="keeping all needs 1.2 GiB of 1 GiB", seconds=seconds)
        cluster.suffix.CopyFrom(plan_pb2.PhaseBytes(hot_set=1 << 20, wave_tape=3 << 20, peak=4 << 20, host=5 << 20))
        cluster.groups.add(uid="g0", rollouts=4, rho=0.8, eta=0.2, epsilon=0.05, speedup=2.2, seconds_reuse=1.0,
                           seconds_dense=2.2, reuse=True)
        plan.seconds.CopyFrom(seconds)
        plan.rates.samples = 3
        plan.rates.linear = 2.5e-12
        plan.state.CopyFrom(plan_pb2.StateBytes(weights=1 << 20, gradients=2 << 20, optimizer=6 << 20, tables=1 << 10,
                                                exchange=1 << 11, device=3 << 20, host=6 << 20, apply=1 << 19))
        return plan

    def ComputeLogProb(self, request_iterator, context):
        import numpy

        header, groups = self._receive(request_iterator)
        for group in groups:
            result = training_pb2.GroupResult(uid=group.uid, dtype=training_pb2.FLOAT64)
            for rollout in group.rollouts:
                values = numpy.full(len(rollout.response_tokens) // 4, self.log_prob if header.weights == "policy" else -2.5)
                result.rollouts.add(rollout_id=rollout.rollout_id, log_probs=values.tobytes(),
                                    entropy=values.tobytes() if header.entropy else b"")
            yield result

    def VerifyGroup(self, request_iterator, context):
        header, groups = self._receive(request_iterator)
        self.verified.append((header, groups))
        answer = verification_pb2.VerifyGroupResponse(step=7, lineage=self.lineage, log_prob_error_max=2e-6,
                                                  log_prob_error_mean=5e-7, log_prob_tokens=12, error_norm=self.error_norm,
                                                  gradient_norm=2.0)
        for run, rows, seconds in ((answer.reuse, 300, 0.25), (answer.dense, 1200, 0.875)):
            for name, value in {"actor/loss": 0.5, "actor/grad_norm": 2.0, "prefix/tokens_computed": rows,
                                "perf/actor/flops": 1e9 * rows, "perf/actor/time_per_step": seconds,
                                "plan/measured_bytes": 1000 * rows}.items():
                run.metrics[name] = value
        for number in range(12):
            answer.parameters.add(name=f"layers.{number}.qkv", error_norm=self.error_norm / (number + 1),
                                  gradient_norm=0.0 if number == 1 else 1.0)
        return answer

    def GetRequest(self, request, context):
        if request.request_id not in self.outcomes:
            details = error_details(grpc.StatusCode.NOT_FOUND, "no such request", "UNKNOWN_REQUEST")
            context.set_trailing_metadata(details)
            context.abort(grpc.StatusCode.NOT_FOUND, "no such request")
        return self.outcomes[request.request_id]

    def ListRequests(self, request, context):
        return training_pb2.ListRequestsResponse(requests=list(self.outcomes.values()))

    def CancelRequest(self, request, context):
        return self.GetRequest(request, context)

    def ExportWeights(self, request, context):
        return training_pb2.ExportWeightsResponse(path=f"/data/exports/{request.name}", step=self.step, bytes=1 << 40,
                                                  lineage=self.lineage)


def abort(context, code, message, reason, **details):
    context.set_trailing_metadata(error_details(code, message, reason, **details))
    context.abort(code, message)


class Process:
    """A process of the test in a group of its own; killed at the end whatever happened."""

    def __init__(self, *argv, **kwargs):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
        self.process = subprocess.Popen(list(map(str, argv)), text=True, start_new_session=True, **options)
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in [*children_of(self.pid), self.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.communicate()

    def send(self, number):
        os.kill(self.pid, number)

    def finish(self, timeout=DEADLINE_S):
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err
