"""The fuzzer's own controls, and its campaign: 10,000 streams of one seed. More, or fresh ones: fuzz_streams.py."""

import pytest

from hostile import fuzz_streams
from hostile.spoiled_streams import ACCEPTED, BROKEN, CODES, INVALID, SHORT, make

SEED = 9
STREAMS = 10_000


def test_ten_thousand_streams_are_each_answered_as_they_deserve():
    failures, seen = fuzz_streams.campaign(SEED, range(STREAMS))
    assert not failures, "\n".join(failures[:20])
    for answer in (ACCEPTED, *((code, reason) for reason, code in CODES.items()
                               if reason in (INVALID, SHORT, "LIMIT_EXCEEDED", "STEP_MISMATCH"))):
        assert seen[str(answer)] > STREAMS / 100, f"{answer} was hardly ever reached: {seen}"


def test_a_stream_is_a_function_of_seed_and_index():
    assert make(1, 5) == make(1, 5)
    assert make(1, 5)[0] != make(2, 5)[0]


@pytest.mark.parametrize("answers, answer", [({INVALID}, ACCEPTED), ({ACCEPTED}, ("INVALID_ARGUMENT", INVALID)),
                                             ({SHORT}, ("INVALID_ARGUMENT", INVALID)), ({INVALID}, ("INTERNAL", INVALID)),
                                             ({BROKEN}, ("UNAVAILABLE", "")), ({BROKEN}, ("UNKNOWN", ""))])
def test_a_wrong_answer_is_noticed(answers, answer):
    assert fuzz_streams.wrong(answers, answer)
