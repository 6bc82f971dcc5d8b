"""The task: reverse four digits and add 3 to each (modulo 10), after sixteen solved examples.

    4821=4517        1 2 8 4 reversed, + 3: 4 5 1 7
    ...
    3907=            the question; a good answer is 0326 and a line end

One character is one token. The prompt (examples, then the question) is long and shared by all answers to it; an answer
is five tokens. The reward is checked, not learned.
"""

import random

CHARACTERS = "0123456789=\n^"  # ^ opens every sequence
TOKEN_OF = {c: i for i, c in enumerate(CHARACTERS)}
VOCAB_SIZE = 16
LINE_END = TOKEN_OF["\n"]
NUM_DIGITS = 4
ANSWER_TOKENS = NUM_DIGITS + 1
NUM_SHOTS = 16


def encode(text):
    return [TOKEN_OF[c] for c in text]


def solve(question):
    return "".join(str((int(digit) + 3) % 10) for digit in reversed(question))


def make_question(rng):
    return "".join(rng.choice("0123456789") for _ in range(NUM_DIGITS))


def make_examples(rng, count):
    questions = [make_question(rng) for _ in range(count)]
    return "".join(f"{q}={solve(q)}\n" for q in questions)


def make_prompt(rng):
    """(tokens of a prompt, its question)."""
    question = make_question(rng)
    return encode("^" + make_examples(rng, NUM_SHOTS) + question + "="), question


def make_lesson(rng):
    """(prompt, response, mask) for the warm start: one opening token, then solved examples; the mask keeps the answers."""
    examples = NUM_SHOTS + 1
    mask = ([0] * (NUM_DIGITS + 1) + [1] * ANSWER_TOKENS) * examples
    return encode("^"), encode(make_examples(rng, examples)), mask


def reward(question, answer_tokens):
    """The share of right digits, 0 unless the line ends where it should."""
    if len(answer_tokens) != ANSWER_TOKENS or answer_tokens[-1] != LINE_END:
        return 0.0
    return sum(a == b for a, b in zip(answer_tokens, encode(solve(question)))) / NUM_DIGITS


def seeded(*parts):
    return random.Random("/".join(str(p) for p in parts))
