"""The example's task, and the trace that was recorded from it."""

import pathlib
import sys

import pytest
import stemma

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples" / "grpo"))
import task  # noqa: E402

TRACE = ROOT / "examples" / "traces" / "reverse4.jsonl"


def test_the_task_is_reversing_and_adding_three():
    assert task.solve("4821") == "4517" and task.solve("3907") == "0326"


@pytest.mark.parametrize("answer, reward", [("0326\n", 1.0), ("0325\n", 0.75), ("9999\n", 0.0), ("03260", 0.0),
                                            ("0326", 0.0), ("03260\n", 0.0), ("03\n", 0.0)])
def test_rewards_are_shares_of_right_digits(answer, reward):
    assert task.reward("3907", task.encode(answer)) == reward


def test_prompts_hold_sixteen_solved_examples_and_a_question():
    prompt, question = task.make_prompt(task.seeded("x", 1))
    text = "".join(task.CHARACTERS[t] for t in prompt)
    *examples, last = text[1:].split("\n")
    assert len(prompt) == 166 and len(examples) == 16 and last == question + "="
    assert all(task.solve(e[:4]) == e[5:] for e in examples)


def test_a_lessons_mask_keeps_the_answers():
    _, response, mask = task.make_lesson(task.seeded("x", 1))
    kept = "".join(task.CHARACTERS[t] for t, m in zip(response, mask) if m)
    questions = "".join(task.CHARACTERS[t] for t in response).split("\n")[:-1]
    assert kept == "".join(task.solve(q[:4]) + "\n" for q in questions)


def test_the_recorded_trace_holds_real_rewards():
    """Each reward is that of its answer to the question that its prompt ends with."""
    requests = list(stemma.trace.read(TRACE))
    modes = [header["loss"]["loss_mode"] for header, _ in requests]
    assert 15 <= len(requests) <= 25 and modes == sorted(modes)  # cross_entropy first, then vanilla
    rewards = []
    for header, groups in requests:
        if header["loss"]["loss_mode"] != "vanilla":
            continue
        for group in groups:
            question = "".join(task.CHARACTERS[t] for t in group["prompt_tokens"][-5:-1])
            for rollout in group["rollouts"]:
                assert rollout["reward"] == task.reward(question, rollout["response_tokens"])
                rewards.append(rollout["reward"])
    assert 0.3 < sum(rewards) / len(rewards) < 0.7
