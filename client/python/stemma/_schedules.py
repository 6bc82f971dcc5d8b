"""Learning-rate schedules: step 0, 1, ... -> learning rate. The client has them because it alone knows the total.

What is no such number is a ValueError: a rate that is merely wrong would train, and nobody would see it. Schedules are no
closures: they cross processes, as trainers' configurations do.
"""

import functools
import math
from typing import Callable

from . import _arrays
from .config import whole


def constant(learning_rate: float, warmup_steps: int = 0) -> Callable[[int], float]:
    """A function of the step: rises over the warm-up, then stays. The step is your iteration, from 0 on: model()["step"] counts
    optimizer steps, and is not it where a request makes several or one is skipped.

    learning_rate   after the warm-up
    warmup_steps    steps of a linear rise; the first of them has 1/warmup_steps of the rate
    """
    learning_rate, warmup_steps = _checked(learning_rate, warmup_steps)
    return functools.partial(_constant_at, learning_rate, warmup_steps)


def _constant_at(learning_rate, warmup_steps, step):
    return learning_rate * _warmup(whole("step", step), warmup_steps)


def linear(learning_rate: float, total_steps: int, warmup_steps: int = 0, min_lr_ratio: float = 0.0) -> Callable[[int], float]:
    """A function of the step, which is your iteration as in constant: rises over the warm-up, then falls to
    min_lr_ratio * learning_rate.

    learning_rate   after the warm-up
    total_steps     where the fall ends
    warmup_steps    as in constant, at most total_steps
    min_lr_ratio    the last rate as a share of learning_rate, from 0 to 1
    """
    return _decaying(learning_rate, total_steps, warmup_steps, min_lr_ratio, _line)


def cosine(learning_rate: float, total_steps: int, warmup_steps: int = 0, min_lr_ratio: float = 0.0) -> Callable[[int], float]:
    """A function of the step, which is your iteration as in constant: rises over the warm-up, then falls along half a cosine to
    min_lr_ratio * learning_rate.

    learning_rate   after the warm-up
    total_steps     where the fall ends
    warmup_steps    as in constant, at most total_steps
    min_lr_ratio    the last rate as a share of learning_rate, from 0 to 1
    """
    return _decaying(learning_rate, total_steps, warmup_steps, min_lr_ratio, _half_cosine)


def _line(done):
    return 1.0 - done


def _half_cosine(done):
    return 0.5 * (1.0 + math.cos(math.pi * done))


def _decaying(learning_rate, total_steps, warmup_steps, min_lr_ratio, shape):
    learning_rate, warmup_steps = _checked(learning_rate, warmup_steps)
    total_steps = whole("total_steps", total_steps, 1)
    if total_steps < warmup_steps:
        raise ValueError(f"warmup_steps is {warmup_steps}, beyond total_steps, {total_steps}: pass at most that")
    ratio = _arrays.real(min_lr_ratio)
    if ratio is None or not 0 <= ratio <= 1:
        raise ValueError(f"min_lr_ratio is {_arrays.shown(min_lr_ratio)}: pass a number from 0 to 1")
    return functools.partial(_decaying_at, (learning_rate, total_steps, warmup_steps, ratio, shape))


def _decaying_at(schedule, step):
    learning_rate, total_steps, warmup_steps, min_lr_ratio, shape = schedule
    step = whole("step", step)
    if step < warmup_steps:
        return learning_rate * _warmup(step, warmup_steps)
    done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return learning_rate * (min_lr_ratio + (1.0 - min_lr_ratio) * shape(done))


def _checked(learning_rate, warmup_steps):
    """(rate, warm-up) as Python's own numbers."""
    rate = _arrays.real(learning_rate)
    if rate is None or not 0 <= rate < math.inf:
        raise ValueError(f"learning_rate is {_arrays.shown(learning_rate)}: pass a number, not negative")
    return rate, whole("warmup_steps", warmup_steps)


def _warmup(step, warmup_steps):
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
