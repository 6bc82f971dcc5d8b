"""Workers that hold one copy of the model together, with real processes: what they load and export, and what is
refused. What they keep: tests/e2e/recovery/mesh_test.py."""

import itertools
import pathlib

import pytest

from client.cli.cli_testing import run
from e2e.gang.gang_export_test import contents
from e2e.gang.gang_test import Local


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Two K/V heads, of which four ranks hold each twice, a vocabulary that does not divide, several files."""
    path = tmp_path_factory.mktemp("mesh") / "model"
    result = run("model", "init", path, "--family", "qwen3", "--seed", 1, "--vocab", 519, "--hidden", 64, "--layers", 3, "--heads", 4,
                 "--kv-heads", 2, "--norm-std", 0.1, "--shard-bytes", "200KB")
    assert result.returncode == 0, result.stderr
    return path


@pytest.mark.parametrize("shard", ["off", "on"])
@pytest.mark.parametrize("mesh", ["tp=2", "tp=4", "dp=2,tp=2", "cp=2,tp=2", "pp=3", "pp=2,tp=2"])
def test_every_mesh_exports_the_files_that_were_loaded(model, tmp_path, mesh, shard):
    if shard == "on" and not {"dp=2", "cp=2"} & set(mesh.split(",")):
        pytest.skip("no two ranks hold the same part of the model")
    loaded = contents(model)
    assert sum(name.endswith(".safetensors") for name in loaded) >= 3
    with Local(tmp_path, model, "--mesh", mesh, "--shard-parameters", shard, dtype="bf16") as local:
        exported = contents(local.call("export", "first").strip())
        assert sorted(exported) == sorted(loaded)
        assert [name for name in loaded if exported[name] != loaded[name]] == []
        sizes = {"dp": 1, "pp": 1, "cp": 1, "tp": 1} | {axis: int(size) for axis, size in (part.split("=") for part in mesh.split(","))}
        places = [tuple(rank[axis] for axis in sizes) for rank in local.status()["ranks"]]
        assert places == list(itertools.product(*(range(size) for size in sizes.values()))), "tp is the inner axis"
        groups = {"data": sizes["dp"] * sizes["cp"], "dp": sizes["dp"], "cp": sizes["cp"], "tp": sizes["tp"], "pp": sizes["pp"]}
        links = local.status()["links"]
        assert {link["axis"]: link["ranks"] for link in links} == {axis: size for axis, size in groups.items() if size > 1}
        assert all(link["gb_per_s"] > 0 and link["message_us"] > 0 for link in links), links
        local.stop()


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    """Eight experts, whose 18 columns four ranks could not share."""
    path = tmp_path_factory.mktemp("experts") / "model"
    result = run("model", "init", path, "--family", "qwen3_moe", "--seed", 2, "--vocab", 60, "--hidden", 32, "--layers", 2, "--heads", 4,
                 "--kv-heads", 2, "--ffn", 18, "--experts", 8, "--experts-per-token", 3, "--norm-std", 0.1, "--shard-bytes", "60KB")
    assert result.returncode == 0, result.stderr
    return path


@pytest.mark.parametrize("mesh, shard", [("tp=4,ep=4", "off"), ("tp=4,ep=2", "off"), ("dp=2,tp=2,ep=2", "on"), ("pp=2,tp=2,ep=2", "off")])
def test_ranks_with_experts_of_their_own_export_the_files_that_were_loaded(experts, tmp_path, mesh, shard):
    loaded = contents(experts)
    with Local(tmp_path, experts, "--mesh", mesh, "--shard-parameters", shard, dtype="bf16") as local:
        exported = contents(local.call("export", "first").strip())
        assert sorted(exported) == sorted(loaded)
        assert [name for name in loaded if exported[name] != loaded[name]] == []
        assert len(local.status()["ranks"]) == 4, "ep makes no ranks"
        local.stop()


@pytest.mark.parametrize("mesh, words", [("tp=2,ep=4", ["ep: 4 does not divide tp, 2", "nearest mesh", "tp=2,ep=2"]),
                                         ("ep=3", ["ep: 3 does not divide tp, 1", "8 experts cannot be dealt to 3"])])
def test_experts_that_cannot_be_dealt_so_are_refused(experts, tmp_path, mesh, words):
    result = run("local", "--model", experts, "--data", tmp_path / "data", "--mesh", mesh)
    assert result.returncode != 0
    said = result.stdout + result.stderr
    assert [word for word in words if word not in said] == [], said


@pytest.mark.parametrize("mesh, words", [("tp=3", ["4 attention heads", "2 K/V heads", "nearest mesh", "dp=3"]),
                                         ("dp=4096,tp=4", ["16384 ranks", "dp=1024,tp=4"]), ("ap=2", ["names no axis"]),
                                         ("tp=2,ep=2", ["the model has no experts", "nearest mesh", "tp=2"]),
                                         ("tp=4,ep=3", ["ep: 3 does not divide tp, 4"]),
                                         ("pp=4", ["4 stages", "3 layers", "dp=2,pp=2"])])
def test_a_mesh_that_cannot_hold_the_model_is_refused(model, tmp_path, mesh, words):
    result = run("local", "--model", model, "--data", tmp_path / "data", "--mesh", mesh)
    assert result.returncode != 0
    said = result.stdout + result.stderr
    assert [word for word in words if word not in said] == [], said
    assert not pathlib.Path(tmp_path / "data").exists(), "nothing is left behind"
