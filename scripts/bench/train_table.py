#!/usr/bin/env python3
"""The table of what recipe_32l.sh or watch_cost.sh kept of k25 train.

  scripts/bench/train_table.py recipe [--steps N] [--warmup N] FILE...    exit code 1 when the losses of 'off' and 'on' differ
  scripts/bench/train_table.py watch [--steps N] [--warmup N] FILE...

Reads the progress lines of steps 1 to N (20) under '== off' and '== on'; fewer are an error, more are passed over. The times
are those of the steps after the warm-up (3).
"""
import argparse
import json
import re
import statistics

from bench_lines import percent, positive, print_table, ratio, read_line, read_sections, refuse

OFFLOAD = ("offload_copy_ms", "offload_cpu_ms", "offload_exposed_ms")
STAMPED = re.compile(r"@(\S+) step=(\d+)/")
RANKS = re.compile(r"model: .* in \d+ layers; (\d+) ranks?;")
PLANNED = re.compile(r"memory planned (\d+) bytes a rank")
TARGET = 0.2  # percent of a step that watching may cost


def first_steps(section, numbers, a):
    """Steps 1 to a.steps are there, in order; how many those of the run are that count."""
    if numbers[:a.steps] != list(range(1, a.steps + 1)):
        refuse(f"{section.where}: the steps under '== {section.name}' are not 1 to {a.steps}: {str(numbers)[:60]}")
    return a.steps


def json_step(line):
    found = json.loads(line)
    return {"step": int(found["step"]), "exact": (found["loss"], found["gnorm"]), "ms": positive(found["step_ms"]),
            "tokens/s": positive(found["tok/s"]), "gib": positive(found["mem_gib"]),
            **{key: found.get(key) for key in OFFLOAD}}


def middle(values):
    return None if None in values else statistics.median(values)


def recipe_run(section, a):
    steps = [read_line(where, line, json_step) for where, line in section.lines if line.startswith('{"step"')]
    if not steps:
        return None  # the run failed, which the script has said
    del steps[first_steps(section, [s["step"] for s in steps], a):]
    text = "\n".join(line for _, line in section.lines)
    ranks, planned = RANKS.search(text), PLANNED.search(text)
    if not ranks or not planned:
        refuse(f"{section.where}: no line with the number of ranks and the bytes planned under '== {section.name}'")
    timed = steps[a.warmup:]
    gpus = int(ranks[1])
    return {"steps": [s["exact"] for s in steps], "gpus": gpus, "ms": middle([s["ms"] for s in timed]),
            "rate": middle([s["tokens/s"] for s in timed]) / gpus, "gib": max(s["gib"] for s in steps),
            "planned": int(planned[1]) / 2**30, **{key: middle([s[key] for s in timed]) for key in OFFLOAD}}


def say_equal(off, on):
    """Whether losses and gradient norms are the same numbers at every step, as printed to the last bit."""
    a, b = off["steps"], on["steps"]
    differs = [i for i, (x, y) in enumerate(zip(a, b, strict=True), 1) if x != y]
    if differs:
        i = differs[0]
        print(f"losses equal: no ({len(differs)} of {len(a)} steps differ; step {i}: loss and gnorm {a[i - 1]} off, {b[i - 1]} on)")
        return False
    print(f"losses equal: yes, over {len(a)} steps")
    return True


def recipe(a):
    runs = {}
    for section in read_sections(a.files, ("off", "on")):
        if section.name in runs:
            refuse(f"{section.where}: '== {section.name}' stands there twice")
        runs[section.name] = recipe_run(section, a)
    if not any(runs.values()):
        refuse('no progress line of k25 train (it begins with {"step")')
    columns = [("offload", None), ("GPUs", "d"), ("ms a step", ".1f"), ("tokens/s a GPU", ".0f"), ("GiB a GPU", ".3f"),
               ("planned", ".3f"), ("measured / planned", ".1%"), ("copy ms", ".1f"), ("cpu ms", ".1f"),
               ("exposed ms", ".1f")]
    table = []
    for name, run in runs.items():
        run = run or {}
        table.append([name, *(run.get(key) for key in ("gpus", "ms", "rate", "gib", "planned")),
                      ratio(run.get("gib"), run.get("planned")), *(run.get(key) for key in OFFLOAD)])
    print_table(columns, table)
    off, on = runs.get("off"), runs.get("on")
    if not off or not on:
        print("losses not compared: off and on are needed")
        return 0 if all(runs.values()) else 1
    print(f"memory {percent(on['gib'], off['gib'])}, throughput {percent(on['rate'], off['rate'])}; "
          "the recipe's document: -45 % and -18 %")
    return 0 if say_equal(off, on) else 1


def watch_run(section, a):
    """The milliseconds between one progress line and the next, after the warm-up."""
    stamps = []
    for where, line in section.lines:
        found = STAMPED.match(line)
        if found:
            stamps.append((read_line(where, found[1], positive), int(found[2])))
    if not stamps:
        return None
    seconds = [second for second, _ in stamps[:first_steps(section, [step for _, step in stamps], a)]]
    times = [1e3 * (end - begin) for begin, end in zip(seconds[a.warmup - 1:], seconds[a.warmup:])]
    if min(times) <= 0:
        refuse(f"{section.where}: two steps under '== {section.name}' came at the same time")
    return {"steps": len(times), "mean": statistics.fmean(times), "median": statistics.median(times),
            "least": min(times), "most": max(times)}


def spread(values):
    """The largest distance between two of one kind, in percent."""
    return 100 * (max(values) / min(values) - 1)


def verdict(costs):
    """Of the mean of the pairs' costs, within two standard errors of it."""
    if len(costs) < 2:
        return "one pair has no spread: not told"
    cost, error = statistics.fmean(costs), statistics.stdev(costs) / len(costs)**0.5
    if cost + 2 * error <= TARGET:
        return f"at most {TARGET} %"
    if cost - 2 * error > TARGET:
        return f"MORE than {TARGET} %"
    return f"+-{error:.3f} cannot tell {TARGET} %: take more --pairs or --steps"


def say_cost(kind, pairs):
    costs = [100 * (on[kind] / off[kind] - 1) for off, on in pairs]
    line = (f"by the {kind}: {statistics.fmean(costs):+.3f} % of a step ({min(costs):+.3f} to {max(costs):+.3f} "
            f"in {len(costs)} pairs)")
    if len(pairs) > 1:
        line += f"; runs of one kind differ by up to {max(spread([p[i][kind] for p in pairs]) for i in (0, 1)):.3f} %"
    print(f"{line}; {verdict(costs)}")


def watch(a):
    runs = [(s.name, watch_run(s, a)) for s in read_sections(a.files, ("off", "on"))]
    print_table([("watch", None), ("steps", "d"), ("mean ms", ".3f"), ("median ms", ".3f"), ("least", ".3f"),
                 ("most", ".3f")],
                [[name, *((run or {}).get(k) for k in ("steps", "mean", "median", "least", "most"))] for name, run in runs])
    pairs = [(x[1], y[1]) for x, y in zip(runs[::2], runs[1::2]) if (x[0], y[0]) == ("off", "on") and x[1] and y[1]]
    if not pairs:
        refuse("no run 'off' followed by a run 'on': nothing to compare")
    for kind in ("mean", "median"):
        say_cost(kind, pairs)
    return 0 if all(run for _, run in runs) else 1


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = {"recipe": recipe, "watch": watch}
    p.add_argument("kind", choices=kinds)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("files", nargs="+")
    a = p.parse_args()
    if not 0 < a.warmup < a.steps:
        p.error("--warmup is at least 1 and below --steps")
    return kinds[a.kind](a)


if __name__ == "__main__":
    raise SystemExit(main())
