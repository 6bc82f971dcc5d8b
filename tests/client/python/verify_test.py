"""Client.verify: what is sent, and what comes back."""

import stemma
from stemma import _proto

from client_test import GROUPS, run
from fake_server import verified


def test_a_verification_is_one_step_of_the_groups_and_comes_back_as_numbers():
    headers = []

    def verify(parts, context):
        headers.append(list(parts)[0].update)
        return verified()

    out = run({"VerifyGroup": verify}, lambda c: c.verify(GROUPS, stemma.grpo(), stemma.adamw(1e-6), old="on_policy", expected_step=3,
                                                          schedule="auto"))
    sent = headers[0]
    assert (sent.request.expected_step, _proto.to_dict(sent)["request"]["schedule"], _proto.to_dict(sent)["old"]["from"]) == (3, "AUTO", "ON_POLICY")
    assert not sent.return_log_probs and not sent.HasField("ppo_mini_batch_size") and not sent.request.validate_only
    assert (out.step, out.lineage, out.log_prob_error_max, out.log_prob_error_mean, out.log_prob_tokens) == (3, "a-1", 2e-6, 1e-6, 8)
    assert (out.error_norm, out.gradient_norm, out.error, out.speedup) == (0.5, 2.0, 0.25, 4.0)
    assert out.reuse == {"perf/actor/time_per_step": 0.5} and out.dense == {"perf/actor/time_per_step": 2.0}
    assert [(p.name, p.error) for p in out.parameters] == [("norm", 0.25), ("bias", float("inf")), ("still", 0.0)]
    assert repr(out) == "Verification(step 3: gradients 0.25 apart, log-probs 2e-06 of 8, 4 times as fast; 3 parameters)"
