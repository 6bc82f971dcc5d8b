"""Seconds of the shapes, as sections of docs/benchmarks.md with a verdict on each target; and how a number is written."""

import os
import platform
import statistics

import page
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


def _recomputed_scores():
    """Says how much of the FLOP ideal is left where attention's backward computes scores again, at the shape with the least."""
    def left(shape):
        return shapes.ideal(shapes.SPEC, shape, shapes.ATTENTION_FLOPS_RECOMPUTED) / shapes.ideal(shapes.SPEC, shape)
    least = min(shapes.SHAPES, key=left)
    yield "Attention's backward computes the scores again, which the ideal does not count: counted on both sides, they leave"
    yield f"{left(least):.1%} of it at {least}."


class Times:
    """What ran in turns. `rows`: {shape: {"dense": [s], "reuse": [s], "transformers": [s], "prefix_grouper": [s]}}"""

    def __init__(self):
        self.mm_gflops = []  # measured between the shapes
        self.rows = {}

    def _row(self, shape):
        times = self.rows[shape]
        dense_flops, reuse_flops = shapes.flops(shapes.SPEC, shape)
        ideal, ratio = dense_flops / reuse_flops, ratios(times["dense"], times["reuse"])
        dense_rate = dense_flops / statistics.median(times["dense"]) / 1e9
        return {"ideal": ideal, "ratio": ratio, "fractions": [pair / ideal for pair in ratio], "dense_rate": dense_rate,
                "reuse_rate": reuse_flops / statistics.median(times["reuse"]) / 1e9,
                "of_mm": dense_rate / statistics.median(self.mm_gflops)}

    def own_verdicts(self):
        """[(text, met)], as page.verdict_lines takes them"""
        result = []
        for shape in self.rows:
            row = self._row(shape)
            result.append((f"{shape}: reuse / dense reaches {statistics.median(row['fractions']):.1%} of the FLOP ideal (target "
                           f"{shape.target:.0%})", page.reaches(row["fractions"], shape.target)))
            if (shape.prompt, shape.response) == (1024, 256):
                result.append((f"{shape}: dense runs at {row['of_mm']:.0%} of the mm rate (target "
                               f"{shapes.DENSE_OF_MM:.0%})", row["of_mm"] >= shapes.DENSE_OF_MM))
        return result

    def baseline_verdicts(self):
        """[(text, met)]"""
        result = []
        for shape, times in self.rows.items():
            for name, ours, target in (("transformers", "dense", shapes.DENSE_OVER_TRANSFORMERS),
                                       ("prefix_grouper", "reuse", shapes.REUSE_OVER_PREFIX_GROUPER)):
                faster = ratios(times[name], times[ours])
                result.append((f"{shape}: {ours} is {statistics.median(faster):.2f} × as fast as {name} (target {target})",
                               page.reaches(faster, target)))
        return result

    def _own_table(self):
        yield "| P/R/N | dense s | reuse s | ratio | FLOP ideal | of ideal | dense GFLOP/s (of mm) | reuse GFLOP/s |"
        yield "|---|---:|---:|---:|---:|---:|---:|---:|"
        for shape, times in self.rows.items():
            row = self._row(shape)
            yield (f"| {shape} | {spread(times['dense'])} | {spread(times['reuse'])} | {spread(row['ratio'])} | "
                   f"{row['ideal']:.3f} | {statistics.median(row['fractions']):.1%} | {row['dense_rate']:.0f} ({row['of_mm']:.0%}) | "
                   f"{row['reuse_rate']:.0f} |")

    def _baseline_table(self):
        yield "| P/R/N | dense s | transformers s | dense is faster by | reuse s | prefix_grouper s | reuse is faster by |"
        yield "|---|---:|---:|---:|---:|---:|---:|"
        for shape, times in self.rows.items():
            yield (f"| {shape} | {spread(times['dense'])} | {spread(times['transformers'])} | "
                   f"{spread(ratios(times['transformers'], times['dense']))} × | {spread(times['reuse'])} | "
                   f"{spread(times['prefix_grouper'])} | {spread(ratios(times['prefix_grouper'], times['reuse']))} × |")

    def own_section(self, ops, op_shape):
        """`ops`: {op: seconds of one reuse step of op_shape}"""
        yield "Forward and backward of one prompt group, without the optimizer. The FLOP ideal is the ratio of exact FLOPs, both"
        yield "sides pruned alike: the last response token is not run, and in the last layer the rows before the last prompt token"
        yield f"compute K and V only. A plain `mm` between the shapes: {spread(self.mm_gflops, 0)} GFLOP/s."
        yield from _recomputed_scores()
        yield ""
        yield from self._own_table()
        yield ""
        yield f"Where the time goes: {op_shape}, one reuse step."
        yield ""
        yield from op_table(ops)
        yield ""
        yield from page.verdict_lines(self.own_verdicts())

    def baseline_section(self):
        yield "transformers: every trajectory in full, sdpa, logits at response positions only, at the micro-batch size and"
        yield "K/V head handling that were fastest here. prefix_grouper: its own attention adapter with sdpa on 4-D masks."
        yield "The same loss; the two baselines' losses are checked to agree."
        yield ""
        yield from self._baseline_table()
        yield ""
        yield from page.verdict_lines(self.baseline_verdicts())


def op_table(ops):
    total = sum(ops.values())
    yield "| op | s | share |"
    yield "|---|---:|---:|"
    for op, seconds in sorted(ops.items(), key=lambda item: -item[1]):
        yield f"| {op} | {seconds:.3f} | {seconds / total:.1%} |"
