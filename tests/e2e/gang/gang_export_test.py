"""An export by two real workers: in a bf16 run each has a part of the fp32 masters, and writes its files of them."""

import os

from client.cli.cli_testing import run
from e2e.gang.gang_test import Local


def contents(directory):
    return {name: open(os.path.join(directory, name), "rb").read() for name in os.listdir(directory)}


def test_two_workers_write_the_files_that_were_loaded(tmp_path):
    model = tmp_path / "model"
    result = run("model", "init", model, "--seed", 1, "--vocab", 256, "--hidden", 64, "--layers", 3, "--norm-std", 0.1,
                 "--shard-bytes", "200KB")
    assert result.returncode == 0, result.stderr
    loaded = contents(model)
    assert sum(name.endswith(".safetensors") for name in loaded) >= 3
    with Local(tmp_path, model, "--workers", 2, dtype="bf16") as local:
        exported = contents(local.call("export", "first").strip())
        assert sorted(exported) == sorted(loaded)
        assert [name for name in loaded if exported[name] != loaded[name]] == []
        local.call("export", "first", code=70)
        assert os.listdir(tmp_path / "data" / "exports") == ["first"], "a second one leaves nothing"
        local.call("export", "second", "--dtype", "bf16")
        local.stop()
