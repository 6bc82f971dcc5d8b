"""F10: a git-lfs pointer is called what it is, and names that are unknown are quoted beside those that are allowed."""

import shutil
import subprocess

import pytest
from e2e.errors.good_request import Request, refusal
from e2e.errors.server import BUILD, MODEL, Cluster
from stemma import _proto

POINTER = ("version https://git-lfs.example/spec/v1\n"
           "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 988097824\n")


def test_f10_a_git_lfs_pointer_is_called_what_it_is(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    (model / "model.safetensors").write_text(POINTER)
    for argv in ([BUILD / "bin/stemma-server", "--model", model, "--data", tmp_path / "data"],
                 [BUILD / "bin/stemma", "model", "inspect", model]):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert "model.safetensors is a git-lfs pointer, not the file of 988097824 bytes" in done.stderr, done.stderr
        assert "git lfs pull" in done.stderr


@pytest.fixture(scope="module")
def cluster():
    with Cluster(fake=True) as running:
        yield running


@pytest.mark.parametrize("field,value,allowed", [
    ("loss_agg_mode", "token_mean", "token-mean, token-sum, seq-mean-token-sum, seq-mean-token-sum-norm, "
                                    "seq-mean-token-mean, prompt-mean"),
    ("loss_mode", "ppo", "vanilla, gspo, cispo, importance_sampling, cross_entropy, gpg"),
    ("kl_loss_type", "full", "kl, kl+, k1, k1+")])
def test_f10_an_unknown_name_is_quoted_and_the_allowed_ones_are_listed(cluster, field, value, allowed):
    request = Request()
    request.header["loss"][field] = value
    message = refusal(lambda: request.send(cluster.stub)).message
    assert f'update.loss.{field} is "{value}", must be one of: {allowed}' in message


def test_f10_an_unknown_dtype_of_an_export_is_quoted(cluster):
    export = _proto.ExportWeightsRequest(name="x", dtype="half")
    message = refusal(lambda: cluster.stub.ExportWeights(export, timeout=60)).message
    assert 'dtype is "half", must be one of: float32, float64, bfloat16, float16' in message
