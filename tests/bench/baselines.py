"""What a user would run instead, timed beside Stemma: transformers with sdpa, and prefix_grouper on top of it.

Both compute one group's forward and backward: logits at response positions only, the same vanilla policy loss with
token-mean, fp32, no optimizer. Each object's Run() returns seconds; `loss` is the last run's, for a check that they agree.
"""

import gc
import time

import torch
import transformers
from prefix_grouper import PrefixGrouper
from prefix_grouper.forward import AttentionForward
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.modeling_utils import AttentionInterface

transformers.utils.logging.disable_progress_bar()

CLIP_LOW, CLIP_HIGH = 0.2, 0.28


class Group:
    """One prompt and N responses of one length, with what the loss reads."""

    def __init__(self, prompt, response, count, vocab, seed=7):
        generator = torch.Generator().manual_seed(seed)
        self.prompt = torch.randint(vocab, (prompt,), generator=generator)
        self.responses = torch.randint(vocab, (count, response), generator=generator)
        self.old_log_probs = -8.0 + 0.1 * torch.randn(count, response, generator=generator)
        self.advantages = torch.randn(count, 1, generator=generator)

    def rows(self, begin, end):
        return torch.cat([self.prompt.expand(end - begin, -1), self.responses[begin:end]], dim=1)


def policy_loss(logits, group, begin, end):
    """logits [n, R, V] of rollouts [begin, end); their share of the group's token-mean."""
    targets = group.responses[begin:end]
    log_probs = torch.log_softmax(logits, dim=-1).gather(-1, targets[..., None])[..., 0]
    ratio = torch.exp((log_probs - group.old_log_probs[begin:end]).clamp(-20, 20))
    advantages = group.advantages[begin:end]
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    return torch.maximum(-advantages * ratio, -advantages * clipped).sum() / group.responses.numel()


def _timed(function):
    gc.collect()
    begin = time.perf_counter()
    loss = function()
    return time.perf_counter() - begin, loss


class TransformersDense:
    """Every trajectory in full, `micro_batch` at a time; the last response token is not run, as in Stemma."""

    def __init__(self, directory, micro_batch=1, attention="sdpa"):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                                       attn_implementation=attention)
        self.micro_batch = micro_batch
        self.loss = None

    def run(self, group):
        self.model.zero_grad(set_to_none=False)
        seconds, self.loss = _timed(lambda: self._step(group))
        return seconds

    def _step(self, group):
        total, first = 0.0, len(group.prompt) - 1
        for begin in range(0, len(group.responses), self.micro_batch):
            end = min(begin + self.micro_batch, len(group.responses))
            tokens = group.rows(begin, end)[:, :-1]
            rows = torch.arange(first, tokens.shape[1])
            logits = self.model(input_ids=tokens, use_cache=False, logits_to_keep=rows).logits
            loss = policy_loss(logits, group, begin, end)
            loss.backward()
            total += loss.item()
        return total


def _repeated_sdpa(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """sdpa on repeated K/V heads: PyTorch's CPU flash kernel takes no grouped heads, its fallback is slower."""
    key, value = repeat_kv(key, module.num_key_value_groups), repeat_kv(value, module.num_key_value_groups)
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, is_causal=attention_mask is None and query.shape[2] > 1,
        scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def _grouper_call(query, key, value, mask_2d, module, scaling, bias):
    """One of prefix_grouper's two calls: the prefix (square: causal), or the suffixes behind copies of the prefix."""
    square = query.shape[2] == key.shape[2]
    return _repeated_sdpa(module, query, key, value, None if square else bias, scaling=scaling)[0]


def _grouper_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, prefix_grouper=None,
                       suffix_bias=None, **kwargs):
    """prefix_grouper hands its attention function a 2-D padding mask; sdpa needs the 4-D one that `suffix_bias` is."""
    out = AttentionForward(_grouper_call)(prefix_grouper, query, key, value, module, scaling, suffix_bias)
    return out, None


AttentionInterface.register("stemma_repeated_sdpa", _repeated_sdpa)
AttentionInterface.register("stemma_prefix_grouper", _grouper_attention)


class PrefixGrouperGroup:
    """prefix_grouper: the prompt once, then all responses, in one row; K/V of the prompt copied to each response."""

    def __init__(self, directory):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                                       attn_implementation="stemma_prefix_grouper")
        self.loss = None

    def run(self, group):
        self.model.zero_grad(set_to_none=False)
        seconds, self.loss = _timed(lambda: self._step(group))
        return seconds

    def _step(self, group):
        prompt, count = len(group.prompt), len(group.responses)
        suffixes = group.responses[:, :-1]  # the last token predicts nothing
        length = suffixes.shape[1]
        tokens = torch.cat([group.prompt, suffixes.reshape(-1)])[None]
        positions = torch.cat([torch.arange(prompt), torch.arange(prompt, prompt + length).repeat(count)])[None]
        grouper = PrefixGrouper([[prompt] + [length] * count])
        hidden_mask = torch.ones(length, prompt + length, dtype=torch.bool).tril(prompt)
        bias = torch.zeros(1, 1, length, prompt + length).masked_fill(~hidden_mask, float("-inf"))
        hidden = self.model.model(input_ids=tokens, position_ids=positions, use_cache=False, prefix_grouper=grouper,
                                  suffix_bias=bias).last_hidden_state
        suffix_hidden = grouper.split_output(hidden, include_prefix_last=1)[2]
        loss = policy_loss(self.model.lm_head(suffix_hidden), group, 0, count)
        loss.backward()
        return loss.item()


def fastest_dense(directory, group):
    """transformers at its best on this machine: its own sdpa path or repeated heads, one row or four at a time."""
    candidates = [TransformersDense(directory, micro_batch, attention)
                  for attention in ("sdpa", "stemma_repeated_sdpa") for micro_batch in (1, 4)]
    timed = [(candidate.run(group), index) for index, candidate in enumerate(candidates)]
    return candidates[min(timed)[1]]
