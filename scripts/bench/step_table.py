#!/usr/bin/env python3
"""The table of what offload.sh, recompute.sh or scaling.sh kept: scripts/bench/step_table.py offload|recompute|scaling FILE...

Reads the lines of `k25 bench step` under '== ROW'. A row without one (it failed) has dashes, and
so has what is compared with it; then the exit code is 1.
"""
import sys

from bench_lines import (number, percent, positive, print_table, ratio, read_line, read_sections, refuse,
                         words)

MEMORY = ("mem_gib", "planned_gib", "model_state_gib")
OFFLOAD = ("copy_ms", "cpu_ms", "exposed_ms")
MODES = ("ordered", "library")


def step_values(line):
    found = words(line)
    return {"ranks": int(found["ranks"]), "tokens": positive(found["tokens"]), "median_ms": positive(found["median_ms"]),
            **{key: number(found[key]) for key in MEMORY}}


def offload_values(line):
    found = words(line)
    return {"threads": int(found["threads"]), "host_gib": number(found["host_gib"]),
            **{key: number(found[key]) for key in OFFLOAD}}


def read_row(section):
    """What k25 bench step said in this section; empty when it did not."""
    values = {}
    for where, line in section.lines:
        for start, read in (("step ranks=", step_values), ("offload copy_ms=", offload_values)):
            if not line.startswith(start):
                continue
            new = read_line(where, line, read)
            if new.keys() & values.keys():
                refuse(f"{where}: a second line '{start}' under '== {section.name}'")
            values |= new
    return values


def read_rows(paths, names=None):
    rows = {}
    for section in read_sections(paths, names):
        if section.name in rows:
            refuse(f"{section.where}: '== {section.name}' stands there twice")
        rows[section.name] = read_row(section)
    if not any("median_ms" in row for row in rows.values()):
        refuse("no line of k25 bench step (it begins with 'step ranks=')")
    return rows


def offload(paths):
    rows = read_rows(paths, ("none", "optimizer", "optimizer-resident", "both", "both-resident"))
    base = rows.get("none", {})
    columns = [("offload", None), ("ms", ".1f"), ("slower", None), ("states GiB", ".3f"), ("lower", None),
               ("peak GiB", ".3f"), ("planned", ".3f"), ("peak / planned", ".1%"), ("copy ms", ".1f"),
               ("cpu ms", ".1f"), ("exposed ms", ".1f"), ("threads", "d"), ("host GiB", ".2f")]
    table = []
    for name, row in rows.items():
        other = row if name != "none" else {}
        table.append([name, row.get("median_ms"), percent(other.get("median_ms"), base.get("median_ms")),
                      row.get("model_state_gib"), percent(other.get("model_state_gib"), base.get("model_state_gib")),
                      row.get("mem_gib"), row.get("planned_gib"), ratio(row.get("mem_gib"), row.get("planned_gib")),
                      *(row.get(key) for key in OFFLOAD), row.get("threads"), row.get("host_gib")])
    print_table(columns, table)
    return 0 if all(rows.values()) else 1


def recompute(paths):
    rows = read_rows(paths, ("none", "cheap", "middle", "all"))
    base = rows.get("none", {})
    columns = [("recompute", None), ("ms", ".1f"), ("x none", ".3f"), ("peak GiB", ".3f"), ("lower", None),
               ("planned", ".3f"), ("peak / planned", ".1%")]
    table = []
    for name, row in rows.items():
        other = row if name != "none" else {}
        table.append([name, row.get("median_ms"), ratio(other.get("median_ms"), base.get("median_ms")),
                      row.get("mem_gib"), percent(other.get("mem_gib"), base.get("mem_gib")),
                      row.get("planned_gib"), ratio(row.get("mem_gib"), row.get("planned_gib"))])
    print_table(columns, table)
    return 0 if all(rows.values()) else 1


def rate(row):
    """Tokens per second of one GPU."""
    return 1e3 * row["tokens"] / row["median_ms"] / row["ranks"] if "median_ms" in row else None


def scaling(paths):
    rows = read_rows(paths)
    columns = [("GPUs", None), ("reduce.mode", None), ("ms", ".1f"), ("tokens/s a GPU", ".0f"), ("of one GPU", ".3f"),
               ("peak GiB", ".3f"), ("planned", ".3f"), ("peak / planned", ".1%")]
    table = []
    for name, row in rows.items():
        gpus, _, mode = name.partition(" ")
        if not gpus.isdigit() or mode not in MODES:
            refuse(f"no row of this table: '{name}' (rows: GPUS {' or '.join(MODES)})")
        if row and row["ranks"] != int(gpus):
            refuse(f"'== {name}' was run by {row['ranks']} ranks")
        base = rate(rows.get(f"1 {mode}", {})) if gpus != "1" else None
        table.append([gpus, mode, row.get("median_ms"), rate(row), ratio(rate(row), base), row.get("mem_gib"),
                      row.get("planned_gib"), ratio(row.get("mem_gib"), row.get("planned_gib"))])
    print_table(columns, table)
    return 0 if all(rows.values()) else 1


def main():
    kinds = {"offload": offload, "recompute": recompute, "scaling": scaling}
    if len(sys.argv) < 3 or sys.argv[1] not in kinds:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(kinds[sys.argv[1]](sys.argv[2:]))


if __name__ == "__main__":
    main()
