"""The small model and the drawn groups that the tests of gangs train."""

import contextlib
import os
import pathlib
import random
import subprocess

import stemma

STEMMA = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "bin" / "stemma"
VOCAB = 512


def make_model(folder):
    subprocess.run([STEMMA, "model", "init", folder, "--seed", "1", "--vocab", str(VOCAB), "--hidden", "128", "--layers", "4",
                    "--norm-std", "0.1"], check=True, capture_output=True)
    return folder


@contextlib.contextmanager
def serving(model, folder, *keys):
    """A client of workers in fp64 with one thread each; `keys`: further lines of run.yaml."""
    config = folder / "run.yaml"
    config.write_text("\n".join([f"model: {model}", "dtype: fp64", "threads: 1", "host_memory_bytes: 16MB", *keys, ""]))
    with stemma.LocalServer(model, binary=STEMMA, config=config) as server:
        yield stemma.Client(server.address)


def groups_of(seed, sizes):
    """A group for each (prompt tokens, rollouts) of sizes, with responses of 1 to 9 tokens."""
    rng = random.Random(seed)

    def tokens(count):
        return [rng.randrange(VOCAB) for _ in range(count)]

    return [stemma.Group(f"g{i}", tokens(prompt), [
        stemma.Rollout(tokens(rng.randint(1, 9)), advantage=rng.uniform(-1, 1), rollout_id=f"{i}/{n}") for n in range(count)])
            for i, (prompt, count) in enumerate(sizes)]
