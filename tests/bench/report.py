"""What the benchmark measured, as the page docs/benchmarks.md and as a verdict on each target."""

import os
import platform
import statistics

import dp_bench
import shapes


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def ratios(above, below):
    """Divides the pairs that ran next to each other."""
    return [a / b for a, b in zip(above, below)]


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "").split()
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal")) / 2**20
    vectors = [name for name in ("avx2", "avx512f", "amx_tile") if name in flags]
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    return f"{model}, {os.cpu_count()} cores, {', '.join(vectors) or 'no wide vectors'}, {memory:.0f} GiB; {system}"


class Results:
    def __init__(self, ops):
        self.ops = ops       # op -> seconds of one reuse step
        self.mm_gflops = []  # measured between the shapes
        self.planner = []    # planner_bench's lines, of plans
        self.placement = []  # and of placements
        self.hot = []        # and of those with a hot group
        self.ranks = {}      # dp_bench's result
        self.split = {}      # its measure_split's
        self.rows = {}       # shape -> {"dense": [s], "reuse": [s], "transformers": [s], "prefix_grouper": [s]}

    def _row(self, shape):
        times = self.rows[shape]
        dense_flops, reuse_flops = shapes.flops(shapes.SPEC, shape)
        ideal, ratio = dense_flops / reuse_flops, ratios(times["dense"], times["reuse"])
        dense_rate = dense_flops / statistics.median(times["dense"]) / 1e9
        return {"ideal": ideal, "ratio": ratio, "fraction": statistics.median(ratio) / ideal, "dense_rate": dense_rate,
                "reuse_rate": reuse_flops / statistics.median(times["reuse"]) / 1e9,
                "of_mm": dense_rate / statistics.median(self.mm_gflops)}

    def verdicts(self):
        """[(text, met)]"""
        result = []
        for shape, times in self.rows.items():
            row = self._row(shape)
            result.append((f"{shape}: reuse / dense reaches {row['fraction']:.1%} of the FLOP ideal (target "
                           f"{shape.target:.0%})", row["fraction"] >= shape.target))
            if (shape.prompt, shape.response) == (1024, 256):
                result.append((f"{shape}: dense runs at {row['of_mm']:.0%} of the mm rate (target "
                               f"{shapes.DENSE_OF_MM:.0%})", row["of_mm"] >= shapes.DENSE_OF_MM))
            for name, ours, target in (("transformers", "dense", shapes.DENSE_OVER_TRANSFORMERS),
                                       ("prefix_grouper", "reuse", shapes.REUSE_OVER_PREFIX_GROUPER)):
                if times.get(name):
                    faster = statistics.median(ratios(times[name], times[ours]))
                    result.append((f"{shape}: {ours} is {faster:.2f} × as fast as {name} (target {target})",
                                   faster >= target))
        for line in self.planner:
            if (target := shapes.PLANNER_SECONDS.get(line["groups"])) is not None:
                result.append((f"planning {line['groups']:,} groups of 16 ({line['budget']} budget, {line['schedule']}) takes "
                               f"{line['seconds']:.2f} s (target {target})", line["seconds"] <= target))
        for line in self.placement:
            if (target := shapes.PLACEMENT.get((line["groups"], line["ranks"]))) is not None:
                seconds, over = target
                result.append((f"placing {line['groups']:,} groups on {line['ranks']} ranks takes {line['seconds'] * 1e3:.2f} ms "
                               f"(target {seconds * 1e3:.0f}), {line['over_bound']:.4%} over the lower bound (target {over:.1%})",
                               line["seconds"] <= seconds and line["over_bound"] <= over))
        for line in self.hot:
            if line["of_ranks"] <= shapes.HOT_RANKS:
                result.append((f"a hot group on {line['of_ranks']} ranks: the slowest takes {line['split']:.2f} of the mean, and "
                               f"{line['whole']:.2f} if it is whole (target {shapes.HOT_SPLIT})", line["split"] <= shapes.HOT_SPLIT))
        return result + dp_bench.verdicts(self.ranks)

    def _own_table(self):
        yield "| P/R/N | dense s | reuse s | ratio | FLOP ideal | of ideal | dense GFLOP/s (of mm) | reuse GFLOP/s |"
        yield "|---|---:|---:|---:|---:|---:|---:|---:|"
        for shape, times in self.rows.items():
            row = self._row(shape)
            yield (f"| {shape} | {spread(times['dense'])} | {spread(times['reuse'])} | {spread(row['ratio'])} | "
                   f"{row['ideal']:.3f} | {row['fraction']:.1%} | {row['dense_rate']:.0f} ({row['of_mm']:.0%}) | "
                   f"{row['reuse_rate']:.0f} |")

    def _baseline_table(self):
        yield "| P/R/N | transformers s | dense is faster by | prefix_grouper s | reuse is faster by |"
        yield "|---|---:|---:|---:|---:|"
        for shape, times in self.rows.items():
            if times.get("transformers"):
                yield (f"| {shape} | {spread(times['transformers'])} | "
                       f"{spread(ratios(times['transformers'], times['dense']))} × | {spread(times['prefix_grouper'])} | "
                       f"{spread(ratios(times['prefix_grouper'], times['reuse']))} × |")

    def _op_table(self):
        total = sum(self.ops.values())
        yield "| op | s | share |"
        yield "|---|---:|---:|"
        for op, seconds in sorted(self.ops.items(), key=lambda item: -item[1]):
            yield f"| {op} | {seconds:.3f} | {seconds / total:.1%} |"

    def _planner_table(self):
        ways = list(dict.fromkeys((line["budget"], line["schedule"]) for line in self.planner))
        seconds = {(line["groups"], line["budget"], line["schedule"]): line["seconds"] for line in self.planner}
        yield "| groups of 16 | " + " | ".join(f"{budget} budget, {schedule}: s (µs a rollout)" for budget, schedule in ways) + " |"
        yield "|---:|" + "---:|" * len(ways)
        for groups in dict.fromkeys(line["groups"] for line in self.planner):
            cells = (seconds[groups, *way] for way in ways)
            yield f"| {groups:,} | " + " | ".join(f"{s:.3f} ({s / groups / 16 * 1e6:.1f})" for s in cells) + " |"

    def _placement_table(self):
        yield "| groups × ranks | ms | fullest rank over the mean | over the lower bound |"
        yield "|---:|---:|---:|---:|"
        for line in self.placement:
            yield (f"| {line['groups']:,} × {line['ranks']} | {line['seconds'] * 1e3:.2f} | {line['imbalance']:.5f} | "
                   f"{line['over_bound']:.4%} |")

    def _hot_table(self):
        yield "| groups × ranks | rollouts of the hot group | ms | whole | split |"
        yield "|---:|---:|---:|---:|---:|"
        for line in self.hot:
            yield (f"| {line['groups']:,} × {line['of_ranks']} | {line['hot_rollouts']:,} | {line['seconds'] * 1e3:.1f} | "
                   f"{line['whole']:.3f} | {line['split']:.3f} |")

    def page(self, command, versions, op_shape):
        yield "# Benchmarks"
        yield ""
        yield "Forward and backward of one prompt group, without the optimizer; fp32, 2 threads; a Llama of 27.8 M parameters"
        yield "(hidden 512, 8 layers, 8/4 heads of 64, FFN 1408, vocabulary 4096). P/R/N: prompt tokens, response tokens,"
        yield "rollouts. What is compared ran in turns in one run; seconds and ratios are medians, with the range."
        yield ""
        yield f"* Machine: {machine()}."
        yield f"* Command: `{command}`. {versions}."
        yield f"* A plain `mm` of this machine: {spread(self.mm_gflops, 0)} GFLOP/s."
        yield ""
        yield "## Reuse against our own dense baseline"
        yield ""
        yield "The FLOP ideal is the ratio of exact FLOPs, both sides pruned alike: the last response token is not run, and in"
        yield "the last layer the rows before the last prompt token compute K and V only."
        yield ""
        yield from self._own_table()
        if any(times.get("transformers") for times in self.rows.values()):
            yield ""
            yield "## Against what one would run instead"
            yield ""
            yield "transformers: every trajectory in full, sdpa, logits at response positions only, at the micro-batch size and"
            yield "K/V head handling that were fastest here. prefix_grouper: its own attention adapter with sdpa on 4-D masks."
            yield "The same loss; the two baselines' losses are checked to agree."
            yield ""
            yield from self._baseline_table()
        if self.ops:
            yield ""
            yield f"## Where the time goes ({op_shape}, one reuse step)"
            yield ""
            yield from self._op_table()
        if self.planner:
            yield ""
            yield "## Planning"
            yield ""
            yield "One core; prompts of 128 to 2,048 and responses of 64 to 2,048 tokens, all drawn: no two groups have one shape. Loose:"
            yield "everything fits. Tight: 1.5 times the fewest bytes in which the longest rollout can be trained."
            yield ""
            yield from self._planner_table()
        if self.placement:
            yield ""
            yield "## Placement"
            yield ""
            yield "Groups of 16 on data-parallel ranks, by predicted seconds, the prefix charged once; lognormal lengths (median prompt"
            yield "512, response 400, sigma 1). No placement of whole groups is below the lower bound: the mean, or the largest group."
            yield ""
            yield from self._placement_table()
            yield ""
            yield "One more group has as many predicted seconds as all others together; the slowest rank over the mean, waiting and"
            yield "sending counted, with whole groups and with the split that `auto` makes."
            yield ""
            yield from self._hot_table()
        if self.ranks:
            yield ""
            yield "## Data parallelism"
            yield ""
            yield "One optimizer step through the server: two workers of one thread each, and one worker of two threads (in brackets"
            yield "where both have a number), in turns. Phases are the slowest rank's; the wait is the fastest one's."
            yield ""
            yield from dp_bench.table(self.ranks)
            if self.split:
                yield ""
                yield from dp_bench.split_table(self.split)
        yield ""
        yield "## Targets"
        yield ""
        for text, met in self.verdicts():
            yield f"* {'met' if met else '**missed**'}: {text}"
