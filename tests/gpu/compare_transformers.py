"""What a user would run instead, on the same GPU: one group's forward and backward through transformers, every trajectory in full,
and with the prompt computed once (two passes over a K/V cache, as prefix_grouper shares it).

    python3 compare_transformers.py --report report.json [--device cuda:0] [--seconds 300] [--layers 8] [--tiny]

The shape, the number of layers and the loss are those of gpu_bench's part "reuse". bf16, gradients of all parameters, no
optimizer. What cannot be run here is written as not measured, with the reason.
"""

import argparse
import fcntl
import json
import os
import statistics
import time

SCHEMA, PART = "stemma.gpu_report.v1", "transformers"
NOT_MEASURED, OUT_OF_TIME = "not measured", "out of time"
KEY = ("what", "size", "layers")
WARM_UPS, RUNS = 2, 3
LARGE = dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
             vocab_size=128256, max_position_embeddings=131072, rope_theta=500000.0)
TINY = dict(hidden_size=128, intermediate_size=192, num_attention_heads=2, num_key_value_heads=1, head_dim=64, vocab_size=512,
            max_position_embeddings=4096, rope_theta=10000.0)


def worth(row):
    """What a row shows: nothing, for want of time, or a number or why there is none."""
    return 0 if row.get("not_measured") == OUT_OF_TIME else 1


class Rows:
    """The part's rows in report.json, which is written whole after each. As gpu_bench does it, rows of the same build on the same
    device stay until they are measured anew, and FILE.lock keeps a second run away."""

    def __init__(self, path):
        self.path, self.begin, self.cut = path, time.monotonic(), False
        try:
            self.lock = open(path + ".lock", "a", encoding="utf-8")
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run writes {path}: wait until it ends, or name another with --report") from None
        except OSError as error:
            raise SystemExit(f"{path} cannot be written: {error.strerror}: name another with --report") from None
        self.report = {"schema": SCHEMA, "parts": {}}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.report = json.load(file)
            if self.report.get("schema") != SCHEMA:
                raise SystemExit(f"{path} is no {SCHEMA}: move it away")

    def start(self, device):
        commit = self.report.get("taken", {}).get("commit", "")
        old = self.report["parts"].get(PART, {})
        stays = commit and "unknown" not in commit and "with changes" not in commit and \
            (old.get("commit"), old.get("device")) == (commit, device)
        self.part = self.report["parts"][PART] = old if stays else {"facts": {}, "tables": {PART: []}}
        self.part.update(state="running", device=device, date=time.strftime("%Y-%m-%d", time.gmtime()), commit=commit)
        self.write()

    def cannot(self, why):
        """Nothing can be run: what an earlier run measured stays."""
        if self.report["parts"].get(PART, {}).get("tables", {}).get(PART):
            return print(f"  transformers: {why}; what the report has of it stays")
        self.start("")
        self.add({"what": "transformers", "size": "–", "layers": 0, "not_measured": why})
        self.end(f"{NOT_MEASURED}: {why}")

    def add(self, row):
        print("  " + json.dumps(row), flush=True)
        table = self.part["tables"][PART]
        same = [i for i, other in enumerate(table) if all(other.get(key) == row[key] for key in KEY)]
        if not same:
            table.append(row)
        elif worth(row) >= worth(table[same[0]]):
            table[same[0]] = row
        self.cut = self.cut or worth(table[same[0]] if same else row) == 0
        self.write()

    def end(self, state=None):
        self.part.update(state=state or (OUT_OF_TIME if self.cut else "done"), seconds=time.monotonic() - self.begin)
        self.write()

    def write(self):
        temporary = self.path + ".part"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(self.report, file, indent=1)
            file.write("\n")
        os.replace(temporary, self.path)


class Group:
    """One prompt and N responses of one length; gpg's loss with the advantages that gpu_bench gives."""

    def __init__(self, torch, size, vocab, device):
        self.prompt_tokens, self.response_tokens, self.count = size
        generator = torch.Generator().manual_seed(7)
        self.prompt = torch.randint(vocab, (self.prompt_tokens,), generator=generator).to(device)
        self.responses = torch.randint(vocab, (self.count, self.response_tokens), generator=generator).to(device)
        self.advantages = (1 + torch.arange(self.count) % 3 / 4).to(device)

    def text(self):
        return f"{self.prompt_tokens}/{self.response_tokens}/{self.count}"


class Trainer:
    """Forward and backward of one group; returns the loss."""

    def __init__(self, torch, model, group, micro_batch):
        self.torch, self.model, self.group, self.micro_batch = torch, model, group, micro_batch

    def loss(self, logits, begin, end):
        """logits [n, R, V] of rollouts [begin, end)."""
        group, torch = self.group, self.torch
        targets = group.responses[begin:end]
        log_probs = torch.log_softmax(logits.float(), dim=-1).gather(-1, targets[..., None])[..., 0]
        return -(log_probs * group.advantages[begin:end, None]).sum() / targets.new_tensor(group.responses.numel())

    def slices(self):
        return [(begin, min(begin + self.micro_batch, self.group.count)) for begin in range(0, self.group.count, self.micro_batch)]

    def dense(self):
        total, first = 0.0, self.group.prompt_tokens - 1
        for begin, end in self.slices():
            rows = self.torch.cat([self.group.prompt.expand(end - begin, -1), self.group.responses[begin:end, :-1]], dim=1)
            logits = self.model(input_ids=rows, use_cache=False, logits_to_keep=self.group.response_tokens).logits
            assert logits.shape[1] == rows.shape[1] - first
            loss = self.loss(logits, begin, end)
            loss.backward()
            total += loss.detach()
        return float(total)

    def cached_prompt(self):
        """The prompt but its last token once; its keys and values are leaves that all responses add gradients to."""
        from transformers import DynamicCache
        torch, prefix = self.torch, self.group.prompt[None, :-1]
        cache = DynamicCache(config=self.model.config)
        self.model.model(input_ids=prefix, past_key_values=cache, use_cache=True)
        kept = [(layer.keys, layer.values) for layer in cache.layers]
        leaves = [tuple(x.detach().requires_grad_() for x in pair) for pair in kept]
        total = 0.0
        for begin, end in self.slices():
            shared = DynamicCache(config=self.model.config)
            for layer, (keys, values) in enumerate(leaves):
                shared.update(keys.expand(end - begin, -1, -1, -1), values.expand(end - begin, -1, -1, -1), layer)
            last = self.group.prompt[-1:].expand(end - begin, 1)
            rows = torch.cat([last, self.group.responses[begin:end, :-1]], dim=1)
            positions = torch.arange(prefix.shape[1], prefix.shape[1] + rows.shape[1], device=rows.device)[None]
            logits = self.model(input_ids=rows, position_ids=positions, past_key_values=shared, use_cache=True).logits
            loss = self.loss(logits, begin, end)
            loss.backward()
            total += loss.detach()
        tensors = [x for pair in kept for x in pair]
        torch.autograd.backward(tensors, [x.grad for pair in leaves for x in pair])
        return float(total)


def timed(torch, device, run):
    """Returns (seconds, what run returns)."""
    synchronize = torch.cuda.synchronize if device != "cpu" else (lambda: None)
    synchronize()
    begin = time.perf_counter()
    result = run()
    synchronize()
    return time.perf_counter() - begin, result


def measure(rows, torch, device, trainer, row, run, left):
    """One row; a lack of memory is its result."""
    row["micro_batch"] = trainer.micro_batch
    try:
        taken = []
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        for turn in range(WARM_UPS + RUNS):
            if left() <= 0:
                break
            trainer.model.zero_grad(set_to_none=False)
            seconds, row["loss"] = timed(torch, device, run)
            if turn >= WARM_UPS:
                taken.append(seconds)
        if taken:
            row["seconds"] = {"median": statistics.median(taken), "least": min(taken), "most": max(taken), "runs": len(taken)}
        else:
            row["not_measured"] = OUT_OF_TIME
        if device != "cpu":
            row["peak_bytes"] = torch.cuda.max_memory_allocated()
    except torch.OutOfMemoryError:
        row["not_measured"] = "out of memory"
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:  # a version of transformers that does it otherwise
        row["not_measured"] = str(error).splitlines()[0][:200]
    rows.add(row)


def make_model(torch, transformers, shape, layers, device, attention):
    config = transformers.LlamaConfig(num_hidden_layers=layers, attn_implementation=attention, tie_word_embeddings=False,
                                      rms_norm_eps=1e-5, **shape)
    torch.manual_seed(3)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    return model.train()


def attention_kinds(device):
    """Which of transformers' attentions this machine has; the reason of each that it has not."""
    kinds, missing = ["sdpa"], {}
    try:
        import flash_attn  # noqa: F401
        if device == "cpu":
            raise ImportError("flash_attn needs a GPU")
        kinds.append("flash_attention_2")
    except ImportError as error:
        missing["flash_attention_2"] = str(error)
    return kinds, missing


def run_all(rows, arguments, torch, transformers):
    begin = time.monotonic()
    shape, size = (TINY, (160, 32, 4)) if arguments.tiny else (LARGE, (10240, 2048, 16))
    layers = min(arguments.layers, 3) if arguments.tiny else arguments.layers

    def left():
        return arguments.seconds - (time.monotonic() - begin)

    rows.part["facts"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    group = Group(torch, size, shape["vocab_size"], arguments.device)
    kinds, missing = attention_kinds(arguments.device)
    named = {"size": group.text(), "layers": layers}
    for kind, why in missing.items():
        rows.add({"what": f"transformers, {kind}", **named, "not_measured": why})
    for kind in kinds:
        model = None
        for name, run_of in (("every trajectory in full", Trainer.dense), ("the prompt once, K/V cached", Trainer.cached_prompt)):
            row = {"what": f"transformers, {kind}, {name}", **named}
            if left() <= 0:
                rows.add({**row, "not_measured": OUT_OF_TIME})
                continue
            model = model or make_model(torch, transformers, shape, layers, arguments.device, kind)
            trainer = Trainer(torch, model, group, micro_batch=1 if run_of is Trainer.dense else min(4, size[2]))
            measure(rows, torch, arguments.device, trainer, row, lambda: run_of(trainer), left)
        del model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tiny", action="store_true", help="a small shape, to test this script")
    arguments = parser.parse_args()
    rows = Rows(arguments.report)
    try:
        import torch
        import transformers
    except ImportError as error:
        return rows.cannot(str(error))
    if arguments.device != "cpu" and not torch.cuda.is_available():
        return rows.cannot("this torch sees no CUDA device")
    rows.start("cpu" if arguments.device == "cpu" else torch.cuda.get_device_name(arguments.device))
    run_all(rows, arguments, torch, transformers)
    rows.end()


if __name__ == "__main__":
    main()
