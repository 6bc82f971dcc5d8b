"""C1: no number of a request destroys a model quietly: refused when it comes, or its step is not applied; and a step that
did write numbers that are not finite makes the model say so until it is loaded again."""

import math
import signal
import struct
import subprocess

import grpc
import pytest
from e2e.errors.good_request import Request, refusal
from e2e.errors.model_files import read_parts, write_parts
from e2e.errors.server import BUILD, MODEL, PATIENCE_S, Cluster
from e2e.file_digest import weights_digest
from stemma import _proto

STEMMA = BUILD / "bin/stemma"


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def cluster(request):
    with Cluster(flags=("--dtype", request.param)) as running:
        yield running


def exported(cluster, name, dtype="float64"):
    cluster.stub.ExportWeights(_proto.ExportWeightsRequest(name=name, dtype=dtype), timeout=60)
    return weights_digest(cluster.root / "data" / "exports" / name)


def with_header(**sections):
    request = Request()
    for section, fields in sections.items():
        request.header[section].update(fields)
    return request


BAD = [("adam", "eps", 1e-50, "[1.0842e-19, "), ("adam", "learning_rate", 1e20, "[0, 1]"),
       ("adam", "weight_decay", 1e300, "3.40282e+38]"), ("adam", "weight_decay", 1e4, "at most 1000 "),
       ("adam", "beta2", 1 - 1e-12, "[0, 1)"), ("adam", "max_grad_norm", 1e-60, "[1.17549e-38, "),
       ("loss", "temperature", 1e-60, "[1.0842e-19, "), ("loss", "kl_loss_coef", 1e39, "3.40282e+38]"),
       ("loss", "clip_ratio_high", math.inf, "must be finite")]


@pytest.mark.parametrize("section,field,value,allowed", BAD)
def test_a_number_that_the_run_cannot_hold_is_refused_by_field_value_and_range(cluster, section, field, value, allowed):
    error = refusal(lambda: with_header(**{section: {field: value}}).send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert error.fields == [f"update.{section}.{field}"]
    assert allowed in error.message and f"is {value:g}" in error.message, error.message
    assert cluster.model().step == 0


@pytest.mark.parametrize("value", [1e39, -1e300])
def test_an_advantage_that_the_run_cannot_hold_is_refused(cluster, value):
    request = Request()
    request.rollout()["advantage"] = value
    error = refusal(lambda: request.send(cluster.stub))
    assert error.fields == ["groups[1].rollouts[1].advantage"]


def test_a_gradient_whose_squares_overflow_is_not_applied_and_the_model_goes_on_as_if_nothing_was(cluster):
    before, step = exported(cluster, "before"), cluster.model().step
    # The ratio is 1 on policy: nothing clips, and the gradient is about 1e30.
    huge = with_header(adam={"max_grad_norm": 0})
    huge.header["old"] = {"from": "ON_POLICY"}
    for group in huge.groups:
        for rollout in group["rollouts"]:
            del rollout["old_log_probs"]
            rollout["advantage"] = 1e30
    error = refusal(lambda: huge.send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NONFINITE_GRADIENT")
    assert "the gradient is too large: its norm is " in error.message and "max_grad_norm" in error.message
    assert exported(cluster, "after") == before
    assert Request().send(cluster.stub).result.steps[0].step == step + 1


def state_of(cluster):
    model = cluster.model()
    return cluster.state(), model.state_reason


def test_a_step_that_wrote_nan_makes_the_model_unusable_until_it_is_loaded_again():
    with Cluster(fake=True) as cluster:
        assert Request().send(cluster.stub).result.steps[0].step == 1
        lineage = cluster.model().lineage
        error = refusal(lambda: Request(("ruin", "g1")).send(cluster.stub))
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NONFINITE_UPDATE")
        assert "layers.0.qkv" in error.message and "restart the worker" in error.message
        state, reason = state_of(cluster)
        assert state == "UNUSABLE" and "layers.0.qkv" in reason and cluster.model().step == 1
        status = subprocess.run([STEMMA, "status", "--server", cluster.address], capture_output=True, text=True)
        assert status.returncode != 0 and "UNUSABLE" in status.stderr and "layers.0.qkv" in status.stderr
        for call in (lambda: Request().send(cluster.stub),
                     lambda: cluster.stub.ExportWeights(_proto.ExportWeightsRequest(name="nan"), timeout=60)):
            assert refusal(call).reason == "NONFINITE_UPDATE"
        cluster.worker.send_signal(signal.SIGKILL)
        cluster.lose_worker()
        cluster.start_worker()
        assert state_of(cluster) == ("IDLE", "")
        assert cluster.model().lineage != lineage and cluster.model().step == 0
        assert Request().send(cluster.stub).result.steps[0].step == 1


def spoiled_model(tmp_path, dtype, value):
    """A copy of the model with one number of one tensor changed: where it stands in the tensor is known."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in MODEL.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    path = folder / "model.safetensors"
    header, data = read_parts(path)
    entry = header["model.layers.1.mlp.down_proj.weight"]
    assert entry["dtype"] == "F32"
    columns = entry["shape"][1]
    place = entry["data_offsets"][0] + 4 * (3 * columns + 5)
    data = bytearray(data)
    data[place:place + 4] = struct.pack("<f", value)
    write_parts(path, header, bytes(data))
    return folder


@pytest.mark.parametrize("dtype,value,said", [("fp32", math.nan, "nan"), ("fp32", -math.inf, "-inf"),
                                              ("bf16", 3.4e38, "3.4e+38, which overflows in the run's dtype")])
def test_weights_that_are_not_finite_are_refused_at_load_by_tensor_and_element(tmp_path, dtype, value, said):
    folder = spoiled_model(tmp_path, dtype, value)
    with Cluster(model=folder, worker=False, flags=("--dtype", dtype)) as cluster:
        worker = subprocess.run([BUILD / "bin/stemma-worker", "--server", cluster.worker_address, "--worker-secret-file",
                                 cluster.secret_file, "--once", "--die-with-parent"],
                                capture_output=True, text=True, timeout=PATIENCE_S)
    assert worker.returncode == 2, worker.stderr
    wanted = f'model.safetensors: tensor "model.layers.1.mlp.down_proj.weight": element [3, 5] is {said}'
    assert wanted in worker.stderr, worker.stderr
