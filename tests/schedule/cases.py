"""The table of parity cases: which requests, on which models, under which schedules, layouts and wave sizes."""

import dataclasses

from oracle import requests


@dataclasses.dataclass(frozen=True)
class Variant:
    """How the engine computes a step; none of it may show in the result."""

    schedule: str = "REUSE"
    layout: str = "PACKED"
    waves: int = 0  # suffixes; 0: as many as the budget takes
    clusters: str = "one"
    head_chunk: int = 512
    prefix: str = "TAPE_POLICY_UNSPECIFIED"
    suffix: str = "TAPE_POLICY_UNSPECIFIED"
    block_rows: int = 0
    offload: bool = False

    def memory(self):
        return {"prefix_policy": self.prefix, "suffix_policy": self.suffix, "prefix_block_rows": self.block_rows,
                "offload": self.offload}

    def __str__(self):
        return (f"{self.schedule}/{self.layout}/waves={self.waves}/clusters={self.clusters}/chunk={self.head_chunk}/"
                f"{self.prefix},{self.suffix}/blocks={self.block_rows}/offload={self.offload}")


EVERY_PLAN = (
    Variant(), Variant(clusters="per_group"), Variant(waves=1), Variant(waves=2), Variant(waves=3, clusters="per_group"),
    Variant(layout="PADDED"), Variant(layout="PADDED", waves=3), Variant(layout="PADDED", waves=2, clusters="per_group"),
    Variant(layout="ONE_BY_ONE", waves=1), Variant("DENSE"), Variant("DENSE", waves=2), Variant("DENSE", "PADDED"),
    Variant("DENSE", "PADDED", 3), Variant("DENSE", "ONE_BY_ONE", 1), Variant("AUTO"), Variant(head_chunk=3),
    Variant("DENSE", head_chunk=1)) + tuple(
        Variant(waves=2, prefix=prefix, suffix=suffix, block_rows=rows, offload=offload)
        for prefix, suffix, rows, offload in (
            ("S1", "S2", 0, False), ("S2", "S1", 3, False), ("S3", "S4", 0, True), ("S4", "S3", 7, False), ("S0", "S0", 5, True),
            ("S5", "S4", 0, False), ("S5", "S1", 1, False), ("S5", "S0", 4, False)))
FEW_PLANS = (Variant(), Variant(layout="PADDED", waves=2), Variant("DENSE"))
REUSE_AND_DENSE = (Variant(waves=2), Variant("DENSE", "PADDED"))
SMALL_CHUNKS = (Variant(head_chunk=4), Variant(head_chunk=7, layout="PADDED"), Variant(head_chunk=4, waves=1, layout="ONE_BY_ONE"),
                Variant("DENSE", head_chunk=4))

# [(prompt tokens, [response tokens])]: no prefix, one rollout, one-token and empty responses, ragged sizes, all at once.
MIXED = [(12, [5, 1, 9, 0, 3]), (1, [4, 2]), (7, [6]), (20, [1, 1, 1]), (2, [3, 8, 4])]
PAIR = [(9, [4, 1, 6]), (3, [2, 5])]


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    model: str
    build: object  # oracle model -> request
    variants: tuple = FEW_PLANS


def case(name, model, variants, shape, loss, edit=None, **options):
    def build(oracle):
        request = requests.make(oracle, shape, requests.LOSSES[loss], **options)
        if edit:
            edit(request)
        return request

    return Case(name, model, build, variants)


def _set_rewards(request, normalize):
    request["header"]["loss"]["normalize_advantage_std"] = normalize
    rewards = iter([0.5, 1.0, -0.25, 2.0, 0.0, 1.5, 0.75, -1.0] * 4)
    for group in request["groups"]:
        for rollout in group["rollouts"]:
            del rollout["advantage"]
            rollout["reward"] = next(rewards)


def _equal_rewards(request):
    _set_rewards(request, normalize=True)
    for rollout in request["groups"][0]["rollouts"]:
        rollout["reward"] = 1.0


def _stat_groups(request):
    for index, group in enumerate(request["groups"]):
        group["stat_group"] = f"s{index // 2}"


def _rewards_over_stat_groups(request):
    _set_rewards(request, normalize=True)
    _stat_groups(request)


def _sample_ids(request):
    for group in request["groups"]:
        for index, rollout in enumerate(group["rollouts"]):
            if index < 2:
                rollout["sample_id"] = group["uid"] + "/first"


def _rewards_of_samples(request):
    _set_rewards(request, normalize=True)
    _sample_ids(request)
    for group in request["groups"]:
        for rollout in group["rollouts"][1:2]:
            rollout["reward"] = group["rollouts"][0]["reward"]


def _token_arrays(request):
    for group in request["groups"]:
        for index, rollout in enumerate(group["rollouts"]):
            count = len(rollout["response_tokens"])
            rollout["rollout_is_weights"] = [0.5 + 0.0625 * ((7 * t + index) % 16) for t in range(count)]
            if index != 1:
                del rollout["advantage"]
                rollout["token_advantages"] = [(-1) ** t * (0.25 + 0.125 * (t % 5)) for t in range(count)]


def _zero_advantages(request):
    for group in request["groups"]:
        for rollout in group["rollouts"][1:]:
            rollout["advantage"] = 0.0


def _families():
    for name in ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral"):
        yield case(f"every plan, {name}", name, EVERY_PLAN, MIXED, "vanilla")
    for name in ("llama_tied", "llama_scaled", "llama_scaled_4", "qwen2_tied_bf16", "qwen3_tied_fp16",
                 "qwen3_moe_raw_fp16", "mistral_tied_bf16"):
        yield case(f"few plans, {name}", name, FEW_PLANS, MIXED, "vanilla", kl="k3", entropy_coeff=0.0625)


def _losses():
    modes = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean", "prompt-mean")
    for loss in requests.LOSSES:
        for mode in modes:
            factor = {"loss_scale_factor": 16.0} if mode.endswith("norm") else {}
            yield case(f"{loss}, {mode}", "qwen3", REUSE_AND_DENSE, PAIR, loss, loss_agg_mode=mode, **factor)
    for loss in ("vanilla", "cispo"):
        yield case(f"{loss} beyond its clamp", "llama", REUSE_AND_DENSE, PAIR, loss, clamped=True, seed=23)


def _terms():
    for base in ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"):
        for kind in (base, base + "+"):
            yield case(f"KL {kind}", "llama", REUSE_AND_DENSE, PAIR, "vanilla", kl=kind)
    yield case("entropy at temperature 0.75", "qwen2", FEW_PLANS, MIXED, "vanilla", entropy_coeff=0.125, temperature=0.75)
    yield case("temperature 1.5, gspo", "llama", FEW_PLANS, MIXED, "gspo", temperature=1.5)
    yield case("negative entropy coefficient", "llama", REUSE_AND_DENSE, PAIR, "gpg", entropy_coeff=-0.0625)
    yield case("entropy of rollouts without advantage", "llama", REUSE_AND_DENSE, PAIR, "vanilla", edit=_zero_advantages,
               entropy_coeff=0.125)
    yield case("KL of rollouts without advantage", "llama", REUSE_AND_DENSE, PAIR, "vanilla", edit=_zero_advantages, kl="k2")
    yield case("gspo, cross-chunk responses", "qwen3", SMALL_CHUNKS, [(6, [19, 3, 8]), (1, [11, 0])], "gspo")
    yield case("gspo with KL and entropy, small chunks", "llama", SMALL_CHUNKS, [(6, [13, 3])], "gspo", kl="k3",
               entropy_coeff=0.0625)
    yield case("vanilla, small chunks", "llama", SMALL_CHUNKS, [(6, [13, 3, 0, 8])], "vanilla", masks="none")


def _numbers():
    yield case("rewards, normalized", "llama", FEW_PLANS, MIXED, "vanilla", edit=lambda r: _set_rewards(r, True))
    yield case("rewards, centered only", "llama", REUSE_AND_DENSE, MIXED, "gpg", edit=lambda r: _set_rewards(r, False))
    yield case("equal rewards are not run", "llama", FEW_PLANS, MIXED, "vanilla", edit=_equal_rewards)
    yield case("rewards over stat groups", "llama", REUSE_AND_DENSE, MIXED, "vanilla", edit=_rewards_over_stat_groups)
    yield case("prompt-mean over stat groups", "qwen3", FEW_PLANS, MIXED, "vanilla", edit=_stat_groups,
               loss_agg_mode="prompt-mean")
    yield case("sequences by sample_id", "llama", FEW_PLANS, MIXED, "vanilla", edit=_sample_ids,
               loss_agg_mode="seq-mean-token-mean")
    yield case("token sums and rewards of samples", "qwen3", FEW_PLANS, MIXED, "vanilla", edit=_rewards_of_samples,
               loss_agg_mode="seq-mean-token-sum")
    yield case("token advantages and importance weights", "llama", FEW_PLANS, MIXED, "vanilla", edit=_token_arrays, kl="k3")
    yield case("zero advantages are not run", "llama", FEW_PLANS, MIXED, "vanilla", edit=_zero_advantages)
    for loss in ("vanilla", "gspo", "cispo", "importance_sampling"):
        yield case(f"{loss}, on policy", "llama", REUSE_AND_DENSE, PAIR, loss, old_from="ON_POLICY")
        yield case(f"{loss}, old from the policy's weights", "llama", REUSE_AND_DENSE, PAIR, loss, old_from="WEIGHTS")
    yield case("old from the rollout engine", "llama", REUSE_AND_DENSE, PAIR, "importance_sampling", old_from="ROLLOUT")
    yield case("KL to the entry weights", "llama", REUSE_AND_DENSE, PAIR, "vanilla", kl="k3", ref_from="WEIGHTS")


def _shapes():
    shapes = {
        "one token prompts": [(1, [5, 3, 1]), (1, [2])],
        "single rollouts": [(9, [4]), (17, [6]), (5, [1])],
        "one token responses": [(15, [1] * 7)],
        "empty responses around one": [(8, [0, 0, 5, 0])],
        "a group of empty responses": [(8, [0, 0]), (6, [3, 2])],
        "twelve rollouts": [(31, [7, 2, 9, 4, 4, 1, 12, 3, 8, 5, 6, 10])],
        "two token prompts": [(2, [3, 4, 5])],
        "responses longer than the prompt": [(3, [40, 17, 33])],
        "a prefix across kernel blocks": [(70, [5, 37, 3]), (34, [33, 65])],
    }
    for name, shape in shapes.items():
        yield case(name, "qwen3", EVERY_PLAN if name == "twelve rollouts" else FEW_PLANS, shape, "vanilla", masks="none")
    yield case("one wholly masked group", "llama", FEW_PLANS, [(6, [3, 4]), (5, [2, 2])], "vanilla", edit=_mask_first_group)


def _mask_first_group(request):
    for rollout in request["groups"][0]["rollouts"]:
        rollout["response_mask"] = [0] * len(rollout["response_tokens"])


CASES = [*_families(), *_losses(), *_terms(), *_numbers(), *_shapes()]
assert len({c.name for c in CASES}) == len(CASES)
