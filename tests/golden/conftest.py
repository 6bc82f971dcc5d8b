"""What the tests through the real server share: one pair of product and oracle per model."""

import pytest
import torch

from golden.pair import Pairs

torch.set_num_threads(1)  # the tests share two cores with others


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    running = Pairs(tmp_path_factory.mktemp("pairs"))
    yield running
    running.close()
