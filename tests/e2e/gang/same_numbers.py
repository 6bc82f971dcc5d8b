"""Whether several workers have the numbers of one, in fp64."""

import math
import pathlib

from safetensors.numpy import load_file

# Sums in another order differ by about 1e-15 of the value; 1e-11 leaves room for three AdamW steps.
CLOSE = 1e-11


def close(a, b):
    return math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE)


def assert_same_results(one, two, groups):
    assert sorted(two) == sorted(one) == sorted(r.rollout_id for g in groups for r in g.rollouts)
    for rollout_id, expected in one.items():
        assert len(two[rollout_id].log_probs) == len(expected.log_probs) > 0, rollout_id
        assert all(map(close, two[rollout_id].log_probs, expected.log_probs)), rollout_id


def assert_same_steps(one, two):
    assert len(one.steps) == len(two.steps)
    for a, b in zip(one.steps, two.steps):
        for name in ("actor/loss", "actor/grad_norm"):
            assert close(a.metrics[name], b.metrics[name]), name


def assert_same_weights(clients, name):
    """Compares what two clients export under this name."""
    first, second = (pathlib.Path(client.export(name, dtype="float64")) for client in clients)
    for file in first.glob("*.safetensors"):
        expected, found = load_file(file), load_file(second / file.name)
        assert sorted(expected) == sorted(found)
        for tensor, values in expected.items():
            assert abs(values - found[tensor]).max() <= CLOSE, tensor
