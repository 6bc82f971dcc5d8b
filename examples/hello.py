#!/usr/bin/env python3
"""Trains against a running server in a few lines; run it as often as you like.

    build/release/bin/stemma model init tiny --family qwen3 --hidden 64 --layers 2 --vocab 32 --seed 1
    build/release/bin/stemma local --model tiny --listen 127.0.0.1:7070 &
    python3 -m venv env && env/bin/pip install ./client/python
    env/bin/python examples/hello.py 127.0.0.1:7070
"""

import random
import sys

import stemma

LIKED = 9  # the token that we reward
client = stemma.Client(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070")
prompt = [random.randrange(10, 30) for _ in range(600)]  # one long prompt, shared by all answers to it

for _ in range(4):
    # Eight made-up answers; every other one holds the liked token. A rollout engine would bring sampled ones.
    answers = [[random.randrange(10, 30), LIKED if i % 2 else 10, 11] for i in range(8)]
    group = stemma.Group("g0", prompt, [stemma.Rollout(a, reward=float(LIKED in a)) for a in answers])
    result = client.update_actor([group], loss=stemma.grpo(), adam=stemma.adamw(1e-3))
    liked = client.log_probs([stemma.Group("g0", prompt, [stemma.Rollout([12, LIKED])])])["g0/0"].log_probs[1]
    m = result.metrics
    print(f"step {result.steps[0].step}: loss {m['actor/loss']:+.4f}  grad norm {m['actor/grad_norm']:.3f}  "
          f"log-prob of the liked token {liked:.3f}  "
          f"tokens run {m['prefix/tokens_computed']:.0f} of {m['prefix/tokens_logical']:.0f}")

saved = 1 - m["prefix/tokens_computed"] / m["prefix/tokens_logical"]
print(f"\nThe prompt was computed once for {len(answers)} answers: {saved:.0%} of the tokens were saved in every step.\n"
      "The loss is 0 because the update is on-policy: every ratio is 1 and the advantages of a group add up to 0.\n"
      "Its gradient is not 0, and the rewarded token becomes likelier.")
print("exported:", client.export(f"hello-{result.request_id}"))
