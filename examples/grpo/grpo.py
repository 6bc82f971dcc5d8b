#!/usr/bin/env python3
"""GRPO in a closed loop on two CPU cores: sample, score, send the groups to Stemma, take the new weights, repeat.

    third_party/venv/bin/python examples/grpo/grpo.py --seed 0

Starts `stemma local` on a tiny random model, teaches it the task a little (cross_entropy, through Stemma), then lets the
reward do the rest. Writes log.jsonl and curve.png under --out.
"""

import argparse
import json
import pathlib
import shutil
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))

import stemma  # noqa: E402
import task  # noqa: E402
from policy import Sampler, make_start_model  # noqa: E402

LESSONS_PER_STEP = 8
WARM_STEPS_PER_REQUEST = 20
WARM_REQUESTS_MAX = 12
WARM_LEARNING_RATE = stemma.constant(2e-3, warmup_steps=2)
WARM_REWARD = 0.45  # the warm start ends here, so that there is something left to learn from rewards

PROMPTS_PER_ROUND = 8
ANSWERS_PER_PROMPT = 16
GRPO_LEARNING_RATE = 2e-4
AVERAGED_ROUNDS = 20  # the reward before and after: means over so many rounds


def adam(learning_rate):
    return stemma.adamw(learning_rate, weight_decay=0.0)


def warm_start(client, sampler, seed, say):
    """Supervised requests of WARM_STEPS_PER_REQUEST optimizer steps until the reward reaches WARM_REWARD."""
    rng = task.seeded("lessons", seed)
    for request in range(WARM_REQUESTS_MAX):
        groups = []
        for i in range(LESSONS_PER_STEP * WARM_STEPS_PER_REQUEST):
            prompt, response, mask = task.make_lesson(rng)
            groups.append(stemma.Group(f"lesson-{request}-{i}", prompt, [stemma.Rollout(response, mask=mask)]))
        result = client.update_actor(groups, loss=stemma.cross_entropy(), adam=adam(WARM_LEARNING_RATE(request)),
                                     old=None, mini_batch=LESSONS_PER_STEP)
        sampler.load(client.export(f"warm-{request}"))
        mean_reward = sum(rewards_of(*rollouts(sampler, rng, 16, 8))) / (16 * 8)
        say(phase="warm", round=request, reward=mean_reward, result=result)
        if mean_reward >= WARM_REWARD:
            return


def rollouts(sampler, rng, num_prompts, num_answers):
    """(prompts, questions, answers) of a round."""
    prompts, questions = zip(*(task.make_prompt(rng) for _ in range(num_prompts)))
    return prompts, questions, sampler.sample(prompts, num_answers)


def rewards_of(_, questions, answers):
    return [task.reward(q, a) for q, its_answers in zip(questions, answers) for a in its_answers]


def grpo_round(client, sampler, rng, index):
    """One round: (mean reward of the answers, UpdateResult)."""
    prompts, questions, answers = rollouts(sampler, rng, PROMPTS_PER_ROUND, ANSWERS_PER_PROMPT)
    groups = [stemma.Group(f"round-{index}-{i}", prompt, [stemma.Rollout(a, reward=task.reward(question, a))
                                                          for a in its_answers])
              for i, (prompt, question, its_answers) in enumerate(zip(prompts, questions, answers))]
    rewards = [r.reward for g in groups for r in g.rollouts]
    result = client.update_actor(groups, loss=stemma.grpo(), adam=adam(GRPO_LEARNING_RATE), old="policy",
                                 mini_batch=PROMPTS_PER_ROUND // 2)
    sampler.load(client.export(f"round-{index}"))
    return sum(rewards) / len(rewards), result


class Log:
    """One JSON line a round, and a short line on the terminal now and then."""

    def __init__(self, path):
        self._file, self._start_s, self.rows = open(path, "w", encoding="utf-8"), time.monotonic(), []

    def __call__(self, phase, round, reward, result):
        metrics = result.metrics  # a round whose answers are all equally good learns nothing, and has a loss of 0
        row = {"phase": phase, "round": round, "reward": reward, "step": result.steps[-1].step,
               "loss": metrics["actor/loss"], "grad_norm": metrics["actor/grad_norm"],
               "tokens_logical": metrics["prefix/tokens_logical"], "tokens_computed": metrics["prefix/tokens_computed"],
               "seconds": time.monotonic() - self._start_s}
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if phase == "warm" or round % 10 == 0:
            print(f"{phase} {round:3d}  reward {reward:.3f}  loss {row['loss']:+.4f}  grad norm {row['grad_norm']:.2f}  "
                  f"tokens {row['tokens_computed']:.0f} of {row['tokens_logical']:.0f}  {row['seconds']:.0f} s",
                  flush=True)


def moving_mean(values, width):
    sums, out = 0.0, []
    for i, value in enumerate(values):
        sums += value - (values[i - width] if i >= width else 0.0)
        out.append(sums / min(i + 1, width))
    return out


def draw(rows, path, title):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rewards = [r["reward"] for r in rows if r["phase"] == "grpo"]
    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=110)
    axes.plot(rewards, color="0.8", linewidth=0.8, label="each round")
    axes.plot(moving_mean(rewards, AVERAGED_ROUNDS), color="tab:blue", label=f"mean of {AVERAGED_ROUNDS} rounds")
    axes.set(xlabel="GRPO round", ylabel="mean reward", title=title, ylim=(0, 1))
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400, help="GRPO rounds, two optimizer steps each")
    parser.add_argument("--schedule", choices=["auto", "reuse", "dense"], default="auto")
    parser.add_argument("--record", metavar="TRACE", help="keep every request for `stemma replay`")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "grpo")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--threads", type=int, default=1, help="of sampler and worker; so small a model needs no more")
    return parser.parse_args()


def run(args):
    """The rows of the log."""
    import torch

    torch.set_num_threads(args.threads)
    binary = args.build / "bin" / "stemma"
    args.out.mkdir(parents=True, exist_ok=True)
    model = args.out / "start-model"
    shutil.rmtree(model, ignore_errors=True)
    make_start_model(binary, model, args.seed)
    log = Log(args.out / "log.jsonl")
    recorder = stemma.trace.TraceWriter(args.record) if args.record else None
    with stemma.LocalServer(model, binary=binary, schedule=args.schedule, threads=args.threads) as server, \
            stemma.Client(server.address, recorder=recorder) as client:
        sampler = Sampler(model, seed=args.seed)
        warm_start(client, sampler, args.seed, log)
        rng = task.seeded("prompts", args.seed)
        for index in range(args.steps):
            reward, result = grpo_round(client, sampler, rng, index)
            log(phase="grpo", round=index, reward=reward, result=result)
        shutil.copytree(client.export("final"), args.out / "final-model", dirs_exist_ok=True)
    return log.rows


def main():
    args = parse_args()
    rows = run(args)
    rewards = [r["reward"] for r in rows if r["phase"] == "grpo"]
    width = min(AVERAGED_ROUNDS, len(rewards))
    before, after = sum(rewards[:width]) / width, sum(rewards[-width:]) / width
    draw(rows, args.out / "curve.png", f"reverse and add 3: seed {args.seed}, {args.schedule}")
    print(f"mean reward {before:.3f} -> {after:.3f} in {len(rewards)} rounds, {rows[-1]['seconds']:.0f} s in all; "
          f"{args.out / 'curve.png'}, {args.out / 'log.jsonl'}")


if __name__ == "__main__":
    main()
