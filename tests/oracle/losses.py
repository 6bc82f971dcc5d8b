"""Policy losses and KL estimators per token, as plain formulas for autograd: the oracle of worker/ops/policy_loss.

Every clamp is a torch op, so the gradients are autograd's own and nothing of the product's case analysis is repeated
here. Aggregation and advantages are step.py's. `loss` is LossConfig as a dict with the public field names.
"""

import torch


def _ratio(loss, log_prob, old_log_prob):
    return torch.exp(torch.clamp(log_prob - old_log_prob, -20.0, 20.0))


def _clip(loss, ratio):
    return torch.clamp(ratio, 1.0 - loss["clip_ratio_low"], 1.0 + loss["clip_ratio_high"])


def sequence_log_ratio(log_prob, old_log_prob, mask):
    return ((log_prob - old_log_prob) * mask).sum() / torch.clamp(mask.sum(), min=1.0)


def sequence_ratio(log_prob, old_log_prob, mask):
    """gspo's ratio on every token; its gradient is taken through the token's own log-prob."""
    mean = sequence_log_ratio(log_prob, old_log_prob, mask).detach()
    return torch.exp(torch.clamp(log_prob - log_prob.detach() + mean, max=10.0))


def _surrogate(loss, advantage, ratio):
    return torch.maximum(-advantage * ratio, -advantage * _clip(loss, ratio))


def vanilla(loss, log_prob, old_log_prob, advantage):
    tokens = _surrogate(loss, advantage, _ratio(loss, log_prob, old_log_prob))
    if loss.get("clip_ratio_c") is None:
        return tokens
    return torch.where(advantage < 0, torch.minimum(tokens, -advantage * loss["clip_ratio_c"]), tokens)


def policy_loss(loss, log_prob, *, old_log_prob=None, advantage=None, mask=None, importance_weight=None,
                loss_weight=None):
    """[R], before the mask, the aggregation's weight and the other terms."""
    mode = loss["loss_mode"]
    if mode == "vanilla":
        tokens = vanilla(loss, log_prob, old_log_prob, advantage)
    elif mode == "gspo":
        tokens = _surrogate(loss, advantage, sequence_ratio(log_prob, old_log_prob, mask))
    elif mode == "cispo":
        tokens = -_clip(loss, _ratio(loss, log_prob, old_log_prob)).detach() * advantage * log_prob
    elif mode == "importance_sampling":
        tokens = -_ratio(loss, log_prob, old_log_prob) * advantage
    elif mode == "cross_entropy":
        return -loss_weight * log_prob
    elif mode == "gpg":
        tokens = -log_prob * advantage
    else:
        raise ValueError(mode)
    return tokens if importance_weight is None else tokens * importance_weight


def _kl_value(name, x):
    if name in ("kl", "k1"):
        return -x
    if name == "abs":
        return x.abs()
    if name in ("mse", "k2"):
        return x * x / 2
    if name in ("low_var_kl", "k3"):
        y = torch.clamp(x, -20.0, 20.0)
        return torch.clamp(torch.exp(y) - y - 1.0, max=10.0)
    raise ValueError(name)


def kl(name, log_prob, ref_log_prob):
    """[R]. A trailing `+`: the named value with the gradient of k2."""
    x = ref_log_prob - log_prob
    if not name.endswith("+"):
        return _kl_value(name, x)
    gradient = _kl_value("k2", x)
    return _kl_value(name[:-1], x).detach() + gradient - gradient.detach()
