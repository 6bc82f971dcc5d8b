"""What the schedule tests share: the models on disk, their oracles, one probe process."""

import os

import pytest
import torch

from oracle import hf64, models
from oracle.probe import Probe

torch.set_num_threads(1)  # the tests share two cores with others


class Models:
    def __init__(self, root):
        self.root, self._oracles = root, {}

    def directory(self, name):
        path = os.path.join(self.root, name)
        return path if os.path.isdir(path) else models.make(path, models.PARITY[name])

    def oracle(self, name):
        """Shared: a test that changes its weights makes its own."""
        if name not in self._oracles:
            self._oracles[name] = hf64.Hf64(self.directory(name))
        return self._oracles[name]


@pytest.fixture(scope="session")
def model_table(tmp_path_factory):
    return Models(str(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="session")
def probe(tmp_path_factory):
    running = Probe(tmp_path_factory.mktemp("probe"))
    yield running
    running.close()
