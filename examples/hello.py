#!/usr/bin/env python3
"""Trains against a running server in a few lines:

    build/release/bin/stemma model init tiny --family qwen3 --hidden 64 --layers 2 --vocab 32 --seed 1
    build/release/bin/stemma local --model tiny --listen 127.0.0.1:7070 &
    third_party/venv/bin/pip install ./client/python
    third_party/venv/bin/python examples/hello.py 127.0.0.1:7070
"""

import random
import sys

import stemma

client = stemma.Client(sys.argv[1])
prompt = [1, 2, 3, 4, 5, 6, 7, 8]
for step in range(3):
    # Four made-up answers of which token 9 is what we like to see; a sampler would bring real ones.
    answers = [[random.randrange(10, 20), 9 if i % 2 else 10] for i in range(4)]
    group = stemma.Group("g0", prompt, [stemma.Rollout(a, reward=float(9 in a)) for a in answers])
    result = client.update_actor([group], loss=stemma.grpo(), adam=stemma.adamw(1e-3), old="policy")
    log_probs = client.log_probs([stemma.Group("g0", prompt, [stemma.Rollout([10, 9])])])
    print(f"step {result.steps[0].step}: loss {result.metrics['actor/loss']:+.4f}, "
          f"log-prob of the liked token {log_probs['g0/0'].log_probs[1]:.3f}")
