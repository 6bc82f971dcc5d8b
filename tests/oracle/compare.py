"""How far an engine's step is from the oracle's, in units of the tolerances that parity asks for."""

import dataclasses

import torch

# fp64 on both sides; every sum here has fewer than 1e4 terms of mixed sign, so 1e-12 leaves about 1e3 roundings of room.
FORWARD = 1e-12         # log-probs, absolute; the loss, relative to max(1, |loss|)
GRADIENT = 1e-12        # of the parameter's largest entry
GRADIENT_FLOOR = 1e-14  # of the model's largest entry: for gradients that vanish by symmetry


@dataclasses.dataclass
class Errors:
    """Worst deviations, each divided by its tolerance: 1 is the limit."""

    log_prob: float
    loss: float
    gradients: dict  # by parameter
    expert_rows: float  # none may be counted wrongly

    @property
    def worst(self):
        return max([self.log_prob, self.loss, self.expert_rows, *self.gradients.values()])

    def report(self):
        name = max(self.gradients, key=self.gradients.get)
        return (f"in units of the tolerance: log-probs {self.log_prob:.3g}, loss {self.loss:.3g}, "
                f"counts of experts {self.expert_rows:.3g}, "
                f"gradients {self.gradients[name]:.3g} ({name})")


def step_errors(answer, tensors, expected):
    """Compares a probe's answer with a StepResult; what was run must be the same too."""
    ran = {name.removeprefix("log_prob.") for name in tensors if name.startswith("log_prob.")}
    assert ran == set(expected.log_probs), f"ran {sorted(ran)}, expected {sorted(expected.log_probs)}"
    named = {name.removeprefix("grad.") for name in tensors if name.startswith("grad.")}
    assert named == set(expected.gradients), f"gradients differ in names: {sorted(named ^ set(expected.gradients))}"
    log_prob = max(((tensors[f"log_prob.{name}"] - value).abs().max().item() / FORWARD
                    for name, value in expected.log_probs.items()), default=0.0)
    for name, value in expected.entropies.items():
        if f"entropy.{name}" in tensors:
            log_prob = max(log_prob, (tensors[f"entropy.{name}"] - value).abs().max().item() / FORWARD)
    loss = abs(answer["loss"] - expected.loss) / (FORWARD * max(1.0, abs(expected.loss)))
    return Errors(log_prob, loss, gradient_errors(tensors, expected.gradients), expert_row_errors(answer, expected))


def expert_row_errors(answer, expected):
    """Infinite where a layer's count is another than the oracle's, or rows that were computed are not all counted."""
    told = answer.get("expert_load") or []
    if expected.expert_rows is None:  # the model has no experts, or nothing ran
        return float("inf") if any(sum(load["logical"]) + sum(load["computed"]) for load in told) else 0.0
    if sorted(load["layer"] for load in told) != list(range(len(expected.expert_rows))):
        return float("inf")
    per_token = int(expected.expert_rows[-1].sum()) // sum(len(value) for value in expected.log_probs.values())
    for load in told:
        same = torch.equal(torch.tensor(load["logical"]), expected.expert_rows[load["layer"]])
        last = load["layer"] == len(expected.expert_rows) - 1
        counted = last or sum(load["computed"]) == per_token * answer["sums"]["computed_rows"]
        if not (same and counted):
            return float("inf")
    return 0.0


def gradient_errors(tensors, gradients):
    largest = max(value.abs().max().item() for value in gradients.values())
    errors = {}
    for name, value in gradients.items():
        assert tensors[f"grad.{name}"].shape == value.shape, name
        limit = max(GRADIENT * value.abs().max().item(), GRADIENT_FLOOR * largest)
        difference = (tensors[f"grad.{name}"] - value).abs().max().item()
        errors[name] = difference / limit if limit > 0 else (0.0 if difference == 0 else float("inf"))
        if difference != difference:
            errors[name] = float("inf")
    return errors
