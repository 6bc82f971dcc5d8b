"""Random requests, valid by construction: every field of the header and of the rollouts that a mode reads can appear.

Left out, because two right answers differ there: the sign in `abs` at a log-ratio of 0 (ref from WEIGHTS before the first step),
and sums of terms so large that they cancel (ratios of e^20 of both signs). Both are compared in process, term by term.
"""

import random

from oracle import requests, step

AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean",
                "prompt-mean"]
KL_TYPES = ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]
FORWARDS_MAX = 60  # trajectories of the oracle: what a request costs


class Draw:
    """One request, from a seed."""

    def __init__(self, seed, model, vocab):
        self.rng, self.seed, self.model, self.vocab = random.Random(seed), seed, model, vocab

    def chance(self, probability):
        return self.rng.random() < probability

    def request(self):
        shape = self._shape()
        self.request_ = {"header": {"loss": self._loss(), "adam": self._adam(), "request": {}},
                         "groups": requests.skeleton(shape, self.vocab, self.rng.randrange(2**31))}
        self.rollouts = [rollout for group in self.request_["groups"] for rollout in group["rollouts"]]
        self._steps(len(shape))
        self._masks()
        self._sources()
        self._numbers()
        self._samples_and_stat_groups()
        return self.request_

    def _shape(self):
        rng = self.rng
        return [(rng.choice([1, 2, rng.randint(1, 20)]),
                 [rng.choice([0, 1, rng.randint(1, 9), rng.randint(1, 9)]) for _ in range(rng.randint(1, 5))])
                for _ in range(rng.randint(1, 6))]

    def _loss(self):
        rng = self.rng
        loss = {"loss_mode": rng.choice(["vanilla", "vanilla", "gspo", "cispo", "importance_sampling", "cross_entropy", "gpg"]),
                "loss_agg_mode": rng.choice(AGGREGATIONS), "temperature": rng.choice([1.0, rng.uniform(0.5, 2.0)])}
        if loss["loss_mode"] in ("vanilla", "gspo", "cispo"):
            loss.update(clip_ratio_low=rng.uniform(0.05, 0.5), clip_ratio_high=rng.uniform(0.05, 0.5))
        if loss["loss_mode"] == "vanilla" and self.chance(0.5):
            loss["clip_ratio_c"] = rng.uniform(1.1, 4.0)
        if loss["loss_agg_mode"] == "seq-mean-token-sum-norm":
            loss["loss_scale_factor"] = rng.uniform(0.5, 20.0)
        if self.chance(0.3):
            loss["entropy_coeff"] = rng.uniform(-0.1, 0.1)
        return loss

    def _adam(self):
        rng = self.rng
        learning_rate = 10 ** rng.uniform(-4, -2.5)
        adam = {"learning_rate": learning_rate, "beta1": rng.uniform(0.5, 0.95), "beta2": rng.uniform(0.9, 0.999),
                "eps": learning_rate * 10 ** rng.uniform(-0.5, 1), "weight_decay": rng.choice([0.0, rng.uniform(0.01, 0.5)]),
                "max_grad_norm": rng.choice([0.0, 0.02, 0.5, 1e6])}
        if adam["weight_decay"]:
            adam["weight_decay_scope"] = rng.choice(["ALL", "MATRICES"])
        return adam

    def _steps(self, count):
        rng, header = self.rng, self.request_["header"]
        header["request"]["schedule"] = rng.choice(["AUTO", "REUSE", "DENSE"])
        epochs = rng.randint(1, max(1, min(3, FORWARDS_MAX // max(1, len(self.rollouts)))))
        if epochs > 1:
            header["ppo_epochs"] = epochs
        if self.chance(0.7):
            header["ppo_mini_batch_size"] = rng.randint(1, count + 1)
        if self.chance(0.5):
            header.update(shuffle=True, seed=rng.randrange(2**64))
        if self.chance(0.3):
            header["return_log_probs"] = True
        self.steps = epochs * -(-count // header.get("ppo_mini_batch_size", count))
        self.one_mini_batch = header.get("ppo_mini_batch_size", count) >= count

    def _masks(self):
        share = self.rng.choice([1.0, 0.7, 0.4])
        for rollout in self.rollouts:
            if share < 1.0 and rollout["response_tokens"]:
                rollout["response_mask"] = [int(self.chance(share)) for _ in rollout["response_tokens"]]

    def _sources(self):
        rng, header = self.rng, self.request_["header"]
        if header["loss"]["loss_mode"] in requests.NEEDS_OLD:
            choices = ["CLIENT", "ROLLOUT", "WEIGHTS"] + (["ON_POLICY"] if self.steps == 1 else [])
            header["old"] = self._source(rng.choice(choices))
        if self.chance(0.4):
            header["ref"] = self._source(rng.choice(["CLIENT", "WEIGHTS"]))
            kinds = KL_TYPES if header["ref"]["from"] == "CLIENT" else [kind for kind in KL_TYPES if kind != "abs"]
            header["loss"].update(kl_loss_coef=rng.uniform(0.01, 0.3), kl_loss_type=rng.choice(kinds) + rng.choice(["", "+"]))

    @staticmethod
    def _source(origin):
        return {"from": origin, **({"weights": "policy"} if origin == "WEIGHTS" else {})}

    def _numbers(self):
        header = self.request_["header"]
        log_probs = step.log_probs(self.model, {**self.request_, "groups": self.request_["groups"]})
        kind = self.rng.choice(["advantage", "token_advantages", "reward", "any"])
        importance = header["loss"]["loss_mode"] != "cross_entropy" and self.chance(0.3)
        for rollout in self.rollouts:
            count = len(rollout["response_tokens"])
            self._log_probs(rollout, log_probs.get(rollout["rollout_id"]), count)
            if header["loss"]["loss_mode"] == "cross_entropy":
                rollout["loss_weights"] = [self._float() for _ in range(count)]
            else:
                self._advantage(rollout, count, kind)
            if importance:
                rollout["rollout_is_weights"] = [abs(self._float()) for _ in range(count)]
        if any("reward" in rollout for rollout in self.rollouts):
            header["loss"]["normalize_advantage_std"] = self.chance(0.5)
        self._equal_or_overflowing()

    def _float(self):
        return 0.0 if self.chance(0.15) else requests.exact(self.rng.gauss(0, 1))

    def _log_probs(self, rollout, log_prob, count):
        header = self.request_["header"]
        origin = header.get("old", {}).get("from")
        if origin in ("CLIENT", "ROLLOUT"):
            name = "old_log_probs" if origin == "CLIENT" else "rollout_log_probs"
            rollout[name] = self._near(log_prob, count, 0.4)
        if header.get("ref", {}).get("from") == "CLIENT":
            rollout["ref_log_prob"] = self._near(log_prob, count, 1.0)

    def _near(self, log_prob, count, spread):
        return [requests.exact(log_prob[t].item() + (25.0 if self.chance(0.02) else self.rng.gauss(0, spread)))
                for t in range(count)]

    def _advantage(self, rollout, count, kind):
        kind = self.rng.choice(["advantage", "token_advantages", "reward"]) if kind == "any" else kind
        if kind == "token_advantages" and count:
            rollout[kind] = [self._float() for _ in range(count)]
        elif kind == "reward":
            rollout[kind] = self.rng.choice([0.0, 1.0, 0.1, self.rng.gauss(0, 1)])
        else:
            rollout["advantage"] = 0.0 if self.chance(0.2) else self.rng.gauss(0, 1)

    def _equal_or_overflowing(self):
        """Groups without a gradient, by equal rewards or advantages of 0; now and then a step that overflows."""
        for group in self.request_["groups"]:
            if self.chance(0.2):
                value = self.rng.choice([0.1, 0.7, 1.0])
                for rollout in group["rollouts"]:
                    if "reward" in rollout:
                        rollout["reward"] = value
                    elif "advantage" in rollout:
                        rollout["advantage"] = 0.0
        if self.chance(0.1):
            self.request_["header"]["request"]["on_nonfinite"] = "SKIP"
            for rollout in self.rng.sample(self.rollouts, 1):
                if "advantage" in rollout:
                    rollout["advantage"] = 1e200

    def _samples_and_stat_groups(self):
        loss, rng = self.request_["header"]["loss"], self.rng
        if loss["loss_agg_mode"].startswith("seq-mean-") and self.chance(0.6):
            for group in self.request_["groups"]:
                for rollout in group["rollouts"]:
                    if self.chance(0.7):
                        place = "" if self.one_mini_batch else group["uid"]
                        rollout["sample_id"] = f"{place}s{rng.randrange(3)}"
        reads = loss["loss_agg_mode"] == "prompt-mean" or any("reward" in rollout for rollout in self.rollouts)
        across = loss["loss_agg_mode"] != "prompt-mean" or self.one_mini_batch
        if reads and self.chance(0.5):
            for index, group in enumerate(self.request_["groups"]):
                if self.chance(0.7):
                    group["stat_group"] = f"s{rng.randrange(2)}" if across else f"alone{index}"
        self._one_reward_of_a_sample()

    def _one_reward_of_a_sample(self):
        rewards = {}
        for row in step.rows_of(self.request_):
            if "reward" in row.rollout:
                row.rollout["reward"] = rewards.setdefault(row.sample, row.rollout["reward"])
