#!/usr/bin/env python3
"""Draws docs/step-trace.svg from docs/step-trace.json, and docs/pipeline-trace.svg from docs/pipeline-trace.json: traces that `stemma
replay --trace-out` wrote.

    docs/make_step_trace_svg.py [TRACE.json OUT.svg]

How the step was recorded stands in the trace: otherData.recorded.
"""

import json
import pathlib
import sys
from xml.sax.saxutils import escape

DOCS = pathlib.Path(__file__).resolve().parent
WIDTH, LEFT, RIGHT = 880, 92, 12
LANES = (("compute", "compute", 30), ("waits", "waits", 12), ("collectives", "collectives", 12))
# By the begin of an event's name: what the legend calls it, its colour, what stands in it where there is room.
LOOKS = (
    ("A:", "prefix forward (A)", "#3b5b8c", "A"),
    ("B: wave forward", "wave forward (B)", "#c2703d", "forward"),
    ("B: wave backward", "wave backward (B)", "#b98a5e", "backward"),
    ("C:", "prefix backward (C)", "#22375a", "C"),
    ("send K/V", "K/V, gK/gV of the split group", "#7a5195", ""),
    ("receive K/V", None, "#7a5195", ""),
    ("send gK/gV", None, "#7a5195", ""),
    ("receive gK/gV", None, "#7a5195", ""),
    ("hidden", "hidden states and their gradients between stages", "#7a5195", ""),
    ("reduce gradients", "gradients to their owners", "#4f8a5b", "reduce"),
    ("agree", "agreement", "#b8b03c", ""),
    ("zero gradients", "norm, AdamW", "#5a9aa8", ""),
    ("gradient norm", None, "#5a9aa8", ""),
    ("AdamW", None, "#5a9aa8", "AdamW"),
    ("gather weights", "weights to all", "#8fbf97", "gather"),
    ("wait for", "waits for the other rank", "#d0453e", ""),
    ("transfer", "held by bytes that move", "#8a949e", ""),
)
COLLECTIVE = {"split.": "#7a5195", "hidden": "#7a5195", "gradients": "#4f8a5b", "weights_digest": "#b8b03c", "weights": "#8fbf97", "step": "#b8b03c",
              "plan": "#b8b03c", "phases": "#b8b03c", "cluster": "#b8b03c"}
STYLE = """text { font-family: Helvetica, Arial, sans-serif; fill: #24292f; font-size: 11px; }
.h { font-size: 13px; font-weight: 600; } .in { fill: #fff; text-anchor: middle; font-size: 10px; } .lane { text-anchor: end; }
.tick { text-anchor: middle; fill: #57606a; } .grid { stroke: #d8dee4; stroke-width: 1; }
.row { fill: #f6f8fa; }"""


def events_of(document):
    """(rank, lane, begin ms, milliseconds, name) of every span; a lane's second thread counts as the lane."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    for e in document["traceEvents"]:
        if e["ph"] == "X":
            yield e["pid"], names[e["pid"], e["tid"]].split(" ")[0], e["ts"] / 1000, e["dur"] / 1000, e["name"]


def look_of(lane, name):
    """Colour, and the word to write into a wide box."""
    if lane == "collectives":
        moved = name.split(" ", 1)[1]
        return next(color for start, color in COLLECTIVE.items() if moved.startswith(start)), ""
    return next((color, word) for start, _, color, word in LOOKS if name.startswith(start))


def boxes(events, x_of, top_of):
    heights = {lane: height for lane, _, height in LANES}
    for rank, lane, begin, length, name in sorted(events):
        if lane not in heights:
            continue
        color, word = look_of(lane, name)
        x, width, y = x_of(begin), max(0.4, length * x_of.scale), top_of[rank, lane]
        yield (f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{heights[lane]}" fill="{color}">'
               f"<title>{escape(name)}, {length:.2f} ms</title></rect>")
        if word and width > 7 * len(word) + 6:
            yield f'<text class="in" x="{x + width / 2:.1f}" y="{y + heights[lane] / 2 + 4:.0f}">{word}</text>'


class Axis:
    """Milliseconds to pixels."""

    def __init__(self, end_ms):
        self.scale = (WIDTH - LEFT - RIGHT) / end_ms

    def __call__(self, ms):
        return LEFT + ms * self.scale


def ticks(end_ms):
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if end_ms / s <= 12)
    return range(0, int(end_ms) + 1, step)


def legend(y, names):
    """What explains the spans of these names: its elements, and the y of their last line."""
    def there(start):
        return any(name.startswith(start) or name.split(" ", 1)[-1].startswith(start) for name in names)

    x, out = LEFT, []
    for start, label, color, _ in LOOKS:
        if label is None or not there(start):
            continue
        width = 34 + 6 * len(label)
        if x + width > WIDTH - RIGHT:
            x, y = LEFT, y + 18
        out.append(f'<rect x="{x:.0f}" y="{y - 9}" width="10" height="10" fill="{color}"/>'
                   f'<text x="{x + 14:.0f}" y="{y}">{escape(label)}</text>')
        x += width
    return out, y


def draw(document):
    events = list(events_of(document))
    processes = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    end_ms = max(begin + length for _, _, begin, length, _ in events)
    x_of, top_of, out, y = Axis(end_ms), {}, [], 12
    for rank in sorted(processes):
        y += 12
        out.append(f'<text class="h" x="12" y="{y}">{escape(processes[rank].split(" (")[0])}</text>')
        y += 8
        for lane, label, height in LANES:
            top_of[rank, lane] = y
            out.append(f'<rect class="row" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{height}"/>'
                       f'<text class="lane" x="{LEFT - 6}" y="{y + height / 2 + 4:.0f}">{label}</text>')
            y += height + 3
        y += 6
    for ms in ticks(end_ms):
        out.append(f'<path class="grid" d="M{x_of(ms):.1f} 16 V{y}"/><text class="tick" x="{x_of(ms):.1f}" y="{y + 12}">{ms} ms</text>')
    out += boxes(events, x_of, top_of)
    explained, y = legend(y + 34, {name for *_, name in events})
    out += explained
    height = y + 12
    label = "One optimizer step on two workers: phases, waits and collectives of each over time"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{label}">\n<style>\n{STYLE}\n</style>\n<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>\n'
            + "\n".join(out) + "\n</svg>\n")


def main():
    pairs = [tuple(map(pathlib.Path, sys.argv[1:]))] if len(sys.argv) > 1 else [
        (DOCS / f"{name}.json", DOCS / f"{name}.svg") for name in ("step-trace", "pipeline-trace")]
    for source, target in pairs:
        target.write_text(draw(json.loads(source.read_text())))


if __name__ == "__main__":
    main()
