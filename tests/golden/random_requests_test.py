"""Random requests through the real server and worker against the oracle. The seeds are fixed, so that CI sees the same
requests each time; STEMMA_GOLDEN_SEED=1000 STEMMA_GOLDEN_COUNT=300 ctest -R users_h1_random runs other ones. A failure
names its seed and the request.
"""

import json
import os

import pytest

from golden.pair import MODELS
from golden.random_requests import Draw

SEED = int(os.environ.get("STEMMA_GOLDEN_SEED", "1"))
COUNT = int(os.environ.get("STEMMA_GOLDEN_COUNT", "36"))
FRESH_EVERY = 20  # requests of one model: then weights and moments start again


@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_h1_a_random_request_trains_as_the_oracle_does(seed, pairs):
    names = sorted(MODELS)
    name = names[seed % len(names)]
    if (seed - SEED) // len(names) % FRESH_EVERY == FRESH_EVERY - 1:
        pairs.discard(name)
    pair = pairs.get(name)
    request = Draw(seed, pair.model, pair.spec.vocab).request()
    print(f"seed {seed} on {name}: {json.dumps(request)}")
    pairs.agree(name, request)
