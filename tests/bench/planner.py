"""The planner's part of `make bench`: seconds of plans and of placements, by planner_bench."""

import json
import os
import subprocess

import page
import shapes

TITLE = "Planning and placement"


def measure(build, quick):
    """[{groups, rollouts, budget, schedule, clusters, seconds, seconds_least, seconds_most}], [{groups, ranks, seconds, imbalance, over_bound}],
    [{groups, of_ranks, hot_rollouts, seconds, whole, split}]"""
    sizes = "256,1024,4096" if quick else "256,1024,4096,16384,62500"
    output = subprocess.run([os.path.join(build, "tests", "planner_bench"), "--groups", sizes], check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    lines = [json.loads(line) for line in output.splitlines()]
    return [[line for line in lines if key in line] for key in ("budget", "ranks", "hot_rollouts")]


def plan_table(plans):
    ways = list(dict.fromkeys((line["budget"], line["schedule"]) for line in plans))
    by_way = {(line["groups"], line["budget"], line["schedule"]): line for line in plans}
    yield "| groups of 16 | " + " | ".join(f"{budget} budget, {schedule}: s" for budget, schedule in ways) + " |"
    yield "|---:|" + "---:|" * len(ways)
    for groups in dict.fromkeys(line["groups"] for line in plans):
        cells = (by_way[groups, *way] for way in ways)
        yield f"| {groups:,} | " + " | ".join(
            f"{cell['seconds']:.3f} ({cell['seconds_least']:.3f}–{cell['seconds_most']:.3f})" for cell in cells) + " |"


def placement_table(placements):
    yield "| groups × ranks | ms | fullest rank over the mean | over the lower bound |"
    yield "|---:|---:|---:|---:|"
    for line in placements:
        yield (f"| {line['groups']:,} × {line['ranks']} | {line['seconds'] * 1e3:.2f} | {line['imbalance']:.5f} | "
               f"{line['over_bound']:.4%} |")


def hot_table(hot):
    yield "| groups × ranks | rollouts of the hot group | ms | whole | split |"
    yield "|---:|---:|---:|---:|---:|"
    for line in hot:
        yield (f"| {line['groups']:,} × {line['of_ranks']} | {line['hot_rollouts']:,} | {line['seconds'] * 1e3:.1f} | "
               f"{line['whole']:.3f} | {line['split']:.3f} |")


def verdicts(plans, placements, hot):
    """[(text, met)]"""
    result = []
    for line in plans:
        if (target := shapes.PLANNER_SECONDS.get(line["groups"])) is not None:
            result.append((f"planning {line['groups']:,} groups of 16 ({line['budget']} budget, {line['schedule']}) takes "
                           f"{line['seconds']:.2f} s (target {target})", line["seconds"] <= target))
    for line in placements:
        if (target := shapes.PLACEMENT.get((line["groups"], line["ranks"]))) is not None:
            seconds, over = target
            result.append((f"placing {line['groups']:,} groups on {line['ranks']} ranks takes {line['seconds'] * 1e3:.2f} ms "
                           f"(target {seconds * 1e3:.0f}), {line['over_bound']:.4%} over the lower bound (target {over:.1%})",
                           line["seconds"] <= seconds and line["over_bound"] <= over))
    for line in hot:
        if line["of_ranks"] <= shapes.HOT_RANKS:
            result.append((f"a hot group on {line['of_ranks']} ranks: the slowest takes {line['split']:.2f} of the mean, and "
                           f"{line['whole']:.2f} if it is whole (target {shapes.HOT_SPLIT})", line["split"] <= shapes.HOT_SPLIT))
    return result


def section(build, quick):
    plans, placements, hot = measure(build, quick)
    yield "One core; prompts of 128 to 2,048 and responses of 64 to 2,048 tokens, all drawn: no two groups have one shape. Loose:"
    yield "everything fits. Tight: 1.5 times the fewest bytes in which the longest rollout can be trained. Medians of three plans,"
    yield "with the range."
    yield ""
    yield from plan_table(plans)
    yield ""
    yield "Groups of 16 on data-parallel ranks, by predicted seconds, the prefix charged once; lognormal lengths (median prompt"
    yield "512, response 400, sigma 1). No placement of whole groups is below the lower bound: the mean, or the largest group."
    yield ""
    yield from placement_table(placements)
    yield ""
    yield "One more group has as many predicted seconds as all others together; the slowest rank over the mean, waiting and"
    yield "sending counted, with whole groups and with the split that `auto` makes."
    yield ""
    yield from hot_table(hot)
    yield ""
    yield from page.verdict_lines(verdicts(plans, placements, hot))
