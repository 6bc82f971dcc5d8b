"""Requests that go through the real server: each is one thing that the planner, the coordinator or the protocol could get
wrong, over several unequal mini-batches.

AdamW hides a constant factor of the gradient where eps is small beside it, so eps is of the clipped gradients' size here: then
a wrong clip moves the weights. A clip hides a factor too, so some requests have none.
"""

import dataclasses

from oracle import requests

SHAPE = [(9, [4, 1, 6]), (1, [2, 5]), (14, [3, 3, 0]), (6, [7]), (11, [2, 8, 1, 4])]  # prompt, responses
ADAM = {"learning_rate": 0.002, "eps": 0.0005, "max_grad_norm": 0.05}
UNCLIPPED = {**ADAM, "max_grad_norm": 0.0}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    model: str  # of pair.MODELS
    loss: str   # of oracle.requests.LOSSES
    header: dict = dataclasses.field(default_factory=dict)
    edit: object = None  # changes the finished request
    options: dict = dataclasses.field(default_factory=dict)  # of oracle.requests.make
    outcomes: tuple = ()  # by step, where not all are applied

    def build(self, model, schedule):
        """The request, with old and reference log-probs that keep a margin from the kinks at these weights."""
        options = {"adam": ADAM, "vocab": 48, "shape": SHAPE, **self.options}
        request = requests.make(model, options.pop("shape"), requests.LOSSES[self.loss], **options)
        request["header"].update(request={"schedule": schedule}, **self.header)
        if self.edit:
            self.edit(request)
        return request


def rollouts(request):
    return [rollout for group in request["groups"] for rollout in group["rollouts"]]


def no_advantage(group):
    """Nothing of the group has a gradient (kl and entropy are off in the requests that use this)."""
    for rollout in group["rollouts"]:
        rollout["advantage"] = 0.0


def set_rewards(normalize):
    def edit(request):
        request["header"]["loss"]["normalize_advantage_std"] = normalize
        values = iter([0.1, 1.0, -0.25, 2.0, 0.3, 1.5, 0.7, -1.0] * 3)
        for rollout in rollouts(request):
            del rollout["advantage"]
            rollout["reward"] = next(values)
    return edit


def equal_rewards(normalize):
    """The second mini-batch is one group of six equal rewards, whose mean in float64 is not exactly theirs."""
    def edit(request):
        set_rewards(normalize)(request)
        for rollout in request["groups"][1]["rollouts"]:
            rollout["reward"] = 0.1
    return edit


def stat_groups(*names):
    def edit(request):
        for group, name in zip(request["groups"], names):
            if name:
                group["stat_group"] = name
    return edit


def rewards_over_stat_groups(request):
    set_rewards(True)(request)
    stat_groups("s", None, "s", "t", "t")(request)


def sample_ids(request):
    """Samples of several rollouts, over two groups of one mini-batch; some rollouts stand for themselves."""
    for number, rollout in enumerate(rollouts(request)[:5]):
        if number != 2:
            rollout["sample_id"] = f"s{number % 2}"
    for rollout in request["groups"][4]["rollouts"][:3]:
        rollout["sample_id"] = "last"


def rewards_of_samples(request):
    """Samples with as many rewards of their own as they have rollouts would have another mean."""
    set_rewards(True)(request)
    sample_ids(request)
    stat_groups("s", "s", "t", None, None)(request)
    by_sample = {}
    for rollout in rollouts(request):
        rollout["reward"] = by_sample.setdefault(rollout.get("sample_id", rollout["rollout_id"]), rollout["reward"])


def empty_in_the_middle(request):
    no_advantage(request["groups"][2])
    no_advantage(request["groups"][3])


def overflow_in_the_middle(request):
    request["groups"][2]["rollouts"][0]["advantage"] = 1e200
    request["header"]["request"]["on_nonfinite"] = "SKIP"


def token_arrays(request):
    """An advantage and a rollout weight for each token; a 0 takes a token out, and zeros on all of them a rollout."""
    for number, rollout in enumerate(rollouts(request)):
        count = len(rollout["response_tokens"])
        del rollout["advantage"]
        rollout["token_advantages"] = [(-1.5, 0.5, 1.25, 0.0)[(number + t) % 4] for t in range(count)]
        rollout["rollout_is_weights"] = [(0.75, 1.5, 0.0)[(number + t) % 3] if number != 4 else 0.0 for t in range(count)]


def one_weightless_rollout(request):
    rollout = request["groups"][0]["rollouts"][0]
    rollout["loss_weights"] = [0.0] * len(rollout["loss_weights"])


def _mini(size, epochs=1, **more):
    return {"ppo_mini_batch_size": size, **({"ppo_epochs": epochs} if epochs > 1 else {}), **more}


def _agg(mode, **more):
    return {"loss_agg_mode": mode, **more}


ENTRY = {"old_from": "WEIGHTS", "kl": "k3", "ref_from": "WEIGHTS"}
APPLIED, EMPTY, OVERFLOW = "APPLIED", "SKIPPED_EMPTY", "SKIPPED_NONFINITE"

CASES = [
    Case("token_mean", "llama", "vanilla", _mini(2, 2)),
    Case("token_mean_shuffled", "qwen3", "vanilla", _mini(2, 3, shuffle=True, seed=7),
         options={"shape": [*SHAPE, (3, [2, 2]), (8, [1, 5]), (2, [6])]}),
    Case("token_sum", "qwen2_tied", "importance_sampling", _mini(2), options=_agg("token-sum", adam=UNCLIPPED)),
    Case("seq_mean_token_sum", "qwen3", "gpg", _mini(2, 2),
         options=_agg("seq-mean-token-sum", adam=UNCLIPPED)),
    Case("seq_mean_token_sum_norm", "llama", "cispo", _mini(3),
         options=_agg("seq-mean-token-sum-norm", loss_scale_factor=7.5)),
    Case("seq_mean_token_mean", "llama", "gspo", _mini(2, shuffle=True, seed=2**64 - 1),
         options=_agg("seq-mean-token-mean")),
    Case("seq_mean_token_mean_by_sample", "qwen2_tied", "vanilla", _mini(2, 2), sample_ids,
         options=_agg("seq-mean-token-mean")),
    Case("seq_mean_token_sum_by_sample", "qwen3", "gpg", _mini(2, 2), rewards_of_samples,
         options=_agg("seq-mean-token-sum", adam=UNCLIPPED)),
    Case("seq_mean_token_sum_norm_by_sample", "llama", "vanilla", edit=rewards_of_samples,
         options=_agg("seq-mean-token-sum-norm", loss_scale_factor=7.5, adam=UNCLIPPED)),
    Case("prompt_mean", "qwen2_tied", "vanilla", _mini(2, 2), options=_agg("prompt-mean")),
    Case("prompt_mean_shuffled", "llama", "gpg", _mini(2, 2, shuffle=True, seed=0),
         options=_agg("prompt-mean", adam=UNCLIPPED)),
    Case("prompt_mean_by_stat_group", "qwen3", "gpg", _mini(2), stat_groups("s", "s", "t", None, None),
         options=_agg("prompt-mean")),
    Case("prompt_mean_all_in_one_step", "llama", "gpg", {"ppo_epochs": 2}, stat_groups("s", None, "s", "t", "s"),
         options=_agg("prompt-mean")),
    Case("old_and_ref_of_the_entry_weights", "llama", "vanilla", _mini(2, 3), options=ENTRY),
    Case("ref_of_the_entry_weights_shuffled", "qwen2_tied", "cispo", _mini(3, 2, shuffle=True, seed=5),
         options={"kl": "low_var_kl+", "ref_from": "WEIGHTS"}),
    Case("old_is_on_policy", "qwen3", "vanilla", options={"old_from": "ON_POLICY"}),
    Case("rewards", "qwen2_tied", "vanilla", _mini(2, 2), set_rewards(True)),
    Case("rewards_without_deviation", "llama", "gspo", _mini(2), set_rewards(False)),
    Case("rewards_over_stat_groups", "qwen3", "vanilla", _mini(2, 2), rewards_over_stat_groups),
    Case("equal_rewards", "qwen3", "vanilla", _mini(1), equal_rewards(True),
         {"shape": [(5, [3, 2]), (7, [4, 1, 2, 3, 1, 5]), (3, [2, 6])]}, (APPLIED, EMPTY, APPLIED)),
    Case("equal_rewards_without_deviation", "llama", "gpg", _mini(1), equal_rewards(False),
         {"shape": [(5, [3, 2]), (7, [4, 1, 2, 3, 1, 5]), (3, [2, 6])]}, (APPLIED, EMPTY, APPLIED)),
    Case("an_empty_step_in_the_middle", "llama", "vanilla", _mini(2, 2), empty_in_the_middle,
         outcomes=(APPLIED, EMPTY, APPLIED) * 2),
    Case("an_overflow_in_the_middle", "qwen2_tied", "gpg", _mini(2, 2), overflow_in_the_middle,
         outcomes=(APPLIED, OVERFLOW, APPLIED) * 2),
    Case("decay_of_matrices", "qwen2_tied", "vanilla", _mini(2), options={
        "adam": {**ADAM, "weight_decay_scope": "MATRICES", "weight_decay": 0.5}}),
    Case("decay_of_all", "qwen3", "vanilla", _mini(2), options={"adam": {**ADAM, "weight_decay": 0.5}}),
    Case("no_decay_no_clip_other_betas", "llama", "gpg", _mini(2, 2), options={
        "adam": {**UNCLIPPED, "weight_decay": 0.0, "beta1": 0.75, "beta2": 0.9375}}),
    Case("clip_in_some_steps_only", "qwen3", "importance_sampling", _mini(1, 2), options={
        "adam": {**ADAM, "max_grad_norm": 1.0}}),
    Case("token_advantages_and_rollout_weights", "llama", "vanilla", _mini(2), token_arrays,
         options={"old_from": "ROLLOUT"}),
    Case("cross_entropy", "qwen2_tied", "cross_entropy", _mini(2, 2), one_weightless_rollout),
    Case("entropy_and_temperature", "qwen3", "vanilla", _mini(2), options={
        "entropy_coeff": 0.0625, "temperature": 0.75, "kl": "abs", "ref_from": "CLIENT"}),
    Case("log_probs_come_back", "llama", "vanilla", _mini(2, 2, return_log_probs=True), empty_in_the_middle,
         outcomes=(APPLIED, EMPTY, APPLIED) * 2),
]
BY_NAME = {case.name: case for case in CASES}
