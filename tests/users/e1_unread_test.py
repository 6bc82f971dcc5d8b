"""E1: what is sent and never read is refused, by the real server; `old="auto"` reads what was sent, and says so."""

import random

import pytest
import stemma
from e2e.errors.server import Cluster

SEED = 20_251
NUMBERS = ("old_log_probs", "rollout_log_probs", "ref_log_prob")


@pytest.fixture(scope="module")
def client():
    with Cluster(flags=("--dtype", "fp64")) as cluster, stemma.Client(cluster.address) as client:
        yield client


def some_groups(**fields):
    """Four rollouts of 3 tokens each; `fields`: what each of them carries beside its reward or advantage."""
    return [stemma.Group(f"g{g}", [1 + g, 2, 3, 4], [stemma.Rollout([5 + r, 6, 7], **{"reward": float(r), **fields})
                                                      for r in range(2)]) for g in range(2)]


def update(client, groups, loss=None, **options):
    return client.update_actor(groups, loss or stemma.grpo(), stemma.adamw(1e-4), **options)


def refusal(client, groups, loss=None, **options):
    step = client.model()["step"]
    with pytest.raises(stemma.StemmaError) as error:
        update(client, groups, loss, **options)
    assert (error.value.code, error.value.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert client.model()["step"] == step
    return error.value


KL = stemma.grpo(kl_loss_coef=1e-3, kl_loss_type="low_var_kl")
UNREAD = [
    ("old_log_probs", {"old": "policy"}, None, 'only old="client" reads it, and that is "policy"'),
    ("old_log_probs", {"old": "on_policy"}, None, 'only old="client" reads it, and that is "on_policy"'),
    ("old_log_probs", {}, stemma.reinforce(), 'only old="client" reads it, and that is None'),
    ("rollout_log_probs", {"old": "policy"}, None, 'only old="rollout" reads it, and that is "policy"'),
    ("rollout_log_probs", {}, stemma.reinforce(), 'only old="rollout" reads it, and that is None'),
    ("ref_log_prob", {}, None, 'only ref="client" reads it, and that is None'),
    ("ref_log_prob", {"ref": "policy"}, KL, 'only ref="client" reads it, and that is "policy"'),
    ("loss_weights", {}, None, "loss_mode vanilla never reads it"),
    ("rollout_is_weights", {"reward": None}, stemma.cross_entropy(), "loss_mode cross_entropy never reads it"),
]


@pytest.mark.parametrize("field, options, loss, says", UNREAD, ids=[f"{f}-{i}" for i, (f, *_) in enumerate(UNREAD)])
def test_e1_an_array_that_nothing_reads_is_refused_by_its_name_and_its_reader(client, field, options, loss, says):
    options = dict(options)
    number = 1.0 if field == "rollout_is_weights" else -1.0  # as each may be, were it read
    fields = {field: [number] * 3, **({"reward": options.pop("reward")} if "reward" in options else {})}
    error = refusal(client, some_groups(**fields), loss, **options)
    assert [name for name, _ in error.fields] == [f"groups[{g}].rollouts[{r}].{field}" for g in (0, 1) for r in (0, 1)]
    assert all(says in text for _, text in error.fields), error


def test_e1_what_the_server_refuses_has_the_names_of_the_api(client):
    for says, change in (("mini_batch is 0, must be at least 1 group", {"mini_batch": 0}), ("epochs is 0", {"epochs": 0}),
                         ("seed is missing: shuffle needs it", {"shuffle": True}), ("request_id ", {"request_id": "a b"}),
                         ('ref is "rollout", must be one of "client", "policy"', {"ref": "rollout", "loss": KL})):
        error = refusal(client, some_groups(), **change)
        assert says in str(error) and error.fields[0][0] == says.split()[0], error
    error = refusal(client, some_groups(reward=None, advantage=[0.5, float("nan"), 0.5]))
    assert error.fields[0][0] == "groups[0].rollouts[0].advantage[1]", error
    with pytest.raises(stemma.StemmaError, match='old is "on_policy", which is right for one .*: use "policy"'):
        update(client, some_groups(), old="on_policy", epochs=2)
    with pytest.raises(stemma.StemmaError, match="^INVALID_ARGUMENT INVALID_REQUEST: temperature is 0"):
        client.log_probs(some_groups(), temperature=0)
    dicts = [{"uid": "g", "prompt_tokens": [1], "rollouts": [{"response_tokens": [10**6], "reward": 0.0}]}]
    assert refusal(client, dicts).fields[0][0] == "groups[0].rollouts[0].response_tokens[0]", "a dict has the wire's names"


def test_e1_a_reward_beside_an_advantage_is_refused(client):
    for advantage in (0.5, [0.5, 0.5, 0.5]):
        error = refusal(client, some_groups(advantage=advantage))
        assert error.fields[0][0] == "groups[0].rollouts[0].reward" and "beside an advantage" in error.fields[0][1]


@pytest.mark.parametrize("fields", [{}, {"reward": None, "advantage": 1.0}], ids=["reward", "advantage"])
def test_e1_what_cross_entropy_never_reads_is_refused(client, fields):
    error = refusal(client, some_groups(**fields), stemma.cross_entropy())
    assert "loss_mode cross_entropy never reads it" in error.fields[0][1]


def test_e1_old_log_probs_that_are_sent_are_read_by_default(client):
    """The same rollouts with other old log-probs give other clip fractions: the numbers count."""
    near, far = some_groups(), some_groups()
    for groups, shift in ((near, 0.0), (far, 3.0)):
        now = client.log_probs(groups)
        for group in groups:
            for index, rollout in enumerate(group.rollouts):
                rollout.old_log_probs = [x - shift for x in now[f"{group.uid}/{index}"].log_probs]
        result = update(client, groups)
        assert result.effective["old"]["from"] == "CLIENT"
        assert (result.metrics["actor/pg_clipfrac"] > 0) == (shift > 0)
        assert result.metrics["actor/ppo_kl"] == pytest.approx(-shift, abs=1e-3)  # float32 on the wire; one small step between


@pytest.mark.parametrize("loss, fields, options, source", [
    (stemma.grpo(), {}, {}, "ON_POLICY"),
    (stemma.grpo(), {}, {"mini_batch": 1}, "WEIGHTS"),
    (stemma.grpo(), {}, {"epochs": 2}, "WEIGHTS"),
    (stemma.grpo(), {}, {"mini_batch": 2}, "ON_POLICY"),
    (stemma.grpo(old="policy"), {}, {}, "WEIGHTS"),
    (stemma.grpo(), {}, {"old": "policy"}, "WEIGHTS"),
    (stemma.grpo(), {"rollout_log_probs": [-4.0] * 3}, {}, "ROLLOUT"),
    (stemma.grpo().as_dict(), {"old_log_probs": [-4.0] * 3}, {"epochs": 2}, "CLIENT"),
    (stemma.reinforce(), {}, {}, None),
    (stemma.cross_entropy(), {"reward": None}, {}, None),
    (stemma.cross_entropy().as_dict(), {"reward": None}, {}, None),
], ids=str)
def test_e1_the_default_of_old_follows_the_mode_and_the_data_and_is_told(client, loss, fields, options, source):
    result = update(client, some_groups(**fields), loss, **options)
    assert result.effective.get("old", {}).get("from") == source and result.steps[0].outcome == "APPLIED"


def test_e1_the_default_of_old_is_visible_in_the_preset():
    assert "old='auto'" in repr(stemma.grpo()) and "old='client'" in repr(stemma.grpo(old="client"))
    assert "old=None" in repr(stemma.reinforce()) and "old=None" in repr(stemma.cross_entropy())
    assert "old" not in stemma.grpo().as_dict()  # it travels beside the loss


def test_e1_two_sets_of_old_log_probs_are_a_question(client):
    groups = some_groups(old_log_probs=[-1.0] * 3, rollout_log_probs=[-1.0] * 3)
    with pytest.raises(ValueError, match="a loss reads one of them: set the other to None in every Rollout"):
        update(client, groups)
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        rollout.rollout_log_probs = None
    assert update(client, groups).effective["old"]["from"] == "CLIENT", "the advice is good"


def test_e1_on_policy_and_policy_are_the_same_update(client):
    """The reason why one step may take the cheaper one: equal gradients."""
    groups = some_groups()
    first, second = [client.update_actor(groups, stemma.grpo(), stemma.adamw(0.0, weight_decay=0.0), old=old)
                     for old in ("policy", "on_policy")]
    assert first.metrics["actor/grad_norm"] == pytest.approx(second.metrics["actor/grad_norm"], rel=1e-12)  # fp64
    assert first.metrics["actor/loss"] == pytest.approx(second.metrics["actor/loss"], abs=1e-12)


def test_e1_the_reference_that_is_sent_is_read_where_there_is_a_kl_term(client):
    result = update(client, some_groups(ref_log_prob=[-4.0] * 3), KL)
    assert result.effective["ref"]["from"] == "CLIENT" and result.metrics["actor/kl_loss"] > 0


def test_e1_any_field_that_the_header_does_not_read_is_refused(client):
    """Random headers and random fields: accepted exactly if all that was sent is read."""
    print("seed", SEED)
    rng = random.Random(SEED)
    accepted = 0
    for _ in range(40):
        old, ref = rng.choice(["client", "rollout", "policy", "on_policy"]), rng.choice(["client", "policy", None])
        read = {"client": {"old_log_probs"}, "rollout": {"rollout_log_probs"}}.get(old, set())
        read = read | ({"ref_log_prob"} if ref == "client" else set())
        sent = read | {field for field in NUMBERS if rng.random() < 0.2}
        fields = {field: [-4.0] * 3 for field in sent}
        loss = KL if ref else stemma.grpo()
        if sent == read:
            accepted += 1
            assert update(client, some_groups(**fields), loss, old=old, ref=ref).steps[0].outcome == "APPLIED"
            continue
        error = refusal(client, some_groups(**fields), loss, old=old, ref=ref)
        assert {name.rpartition(".")[2] for name, _ in error.fields} == sent - read, (old, ref, sent)
    assert 5 < accepted < 35
