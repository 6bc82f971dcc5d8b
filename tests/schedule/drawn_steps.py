"""What draws of several ranks share: how a step is planned and what is asked of it, and that it is the oracle's."""

import torch

from oracle import compare, hf64, models, requests, step

POLICIES = ("S0", "S1", "S2", "S3", "S4")
LARGE = 1e6  # tolerances: a relative error of 1e-6
SHAPE = [(9, [4, 1, 6]), (1, [2, 5]), (14, [3, 3]), (6, [7])]


def drawn_options(rng, mesh, copies, schedules, seed):
    """Options of the probe: waves, placement, and the policies of all clusters or, with copies that split groups, of each."""
    options = {"mesh": mesh, "schedule": rng.choice(schedules), "layout": rng.choice(["PACKED", "PADDED"]),
               "waves": rng.choice([0, 1, 2, 3]), "head_chunk": rng.choice([0, 3, 5]), "placement_seed": rng.randrange(1, 2**31)}
    if options["schedule"] == "REUSE" and copies == 2 and rng.random() < 0.6:
        return options | {"split_seed": seed, "split_policies": True}
    options |= {"prefix_policy": rng.choice([*POLICIES, "S5"]), "suffix_policy": rng.choice(POLICIES),
                "prefix_block_rows": rng.choice([0, 3, 7])}
    return options | {"offload": options["prefix_policy"] != "S5" and rng.random() < 0.5}


def drawn_shape(rng):
    """Prompt tokens and response lengths of each group: some without a prefix, or of one rollout."""
    return [(rng.choice([1, 2, 3, rng.randint(3, 40)]), [rng.randint(1, 12) for _ in range(rng.choice([1, rng.randint(2, 6)]))])
            for _ in range(rng.randint(1, 5))]


def drawn_request(rng, shape, seed):
    """oracle -> request, of any loss."""
    loss = requests.LOSSES[rng.choice(sorted(requests.LOSSES))]
    mode, old_from = rng.choice(["token-mean", "seq-mean-token-sum", "prompt-mean"]), rng.choice(["CLIENT", "WEIGHTS"])
    return lambda oracle: requests.make(oracle, shape, loss, seed=seed, loss_agg_mode=mode, old_from=old_from)


def assert_the_oracles(case, folder, probe, seed):
    """The case is (model, options of the probe, oracle -> request). Returns the probe's answer."""
    spec, options, make = case
    directory = models.make(str(folder / "model"), spec)
    oracle = hf64.Hf64(directory)
    request = make(oracle)
    expected = step.run(oracle, request)
    answer, tensors = probe.run(directory, request, **options)
    errors = compare.step_errors(answer, tensors, expected)
    assert errors.worst <= 1, f"STEMMA_SEED={seed}: {spec}, {options}: {errors.report()}"
    norm = sum(value.square().sum().item() for value in expected.gradients.values()) ** 0.5
    assert abs(answer["grad_norm"] - norm) <= compare.GRADIENT * norm, f"STEMMA_SEED={seed}: the norm"
    return answer


def assert_twice_the_same_bits(probe, setting, mesh, **options):
    directory, request, _ = setting
    first, second = (probe.run(directory, request, mesh=mesh, dtype="fp32", apply=True, **options)[1] for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def assert_a_mistake_fails(probe, setting, mesh, in_log_probs, **control):
    """The mistake spoils gradients, and log-probs only where it is said to."""
    directory, request, expected = setting
    answer, tensors = probe.run(directory, request, mesh=mesh, **control)
    errors = compare.step_errors(answer, tensors, expected)
    assert max(errors.gradients.values()) > LARGE, errors.report()
    assert (errors.log_prob > LARGE) == in_log_probs, errors.report()


def assert_policies_have_the_same_bits(probe, setting, mesh, **options):
    directory, request, _ = setting
    kept, *recomputed = (probe.run(directory, request, mesh=mesh, dtype="fp32", prefix_policy=policy, suffix_policy=policy,
                                   **options)[1] for policy in POLICIES)
    for policy, tensors in zip(POLICIES[1:], recomputed):
        assert all(torch.equal(kept[name], tensors[name]) for name in kept), policy


def assert_ten_steps_are_one_ranks(probe, setting, mesh, **options):
    directory, request, _ = setting
    request = requests.with_fields(request, ppo_mini_batch_size=2, ppo_epochs=5)
    one, several = (probe.run(directory, request, mesh=m, apply=True, **options)[1] for m in ("dp=1", mesh))
    unit = 10 * request["header"]["adam"]["learning_rate"]
    for name, weight in one.items():
        if name.startswith("weight."):
            # AdamW's first steps divide by the gradient's own size: a relative error of 1e-16 / eps = 1e-8 of lr.
            assert (several[name] - weight).abs().max().item() < 1e-6 * unit, name


def assert_bf16_is_as_near_as_one_ranks(probe, setting, mesh, **options):
    directory, request, expected = setting

    def error(mesh):
        _, tensors = probe.run(directory, request, mesh=mesh, dtype="bf16", **options)
        errors = [((tensors[f"grad.{name}"] - value).norm() / value.norm()).item() ** 2
                  for name, value in expected.gradients.items()]
        return (sum(errors) / len(errors)) ** 0.5

    assert error(mesh) <= 1.2 * error("dp=1")  # both round everywhere, and their errors differ by chance
