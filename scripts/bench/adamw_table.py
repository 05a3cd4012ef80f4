#!/usr/bin/env python3
"""K25's AdamW on the CPU beside PyTorch's, of what adamw.sh kept: scripts/bench/adamw_table.py FILE...

Medians over the rounds. Ratio: GB/s of K25 over PyTorch's, of the rounds' medians.
"""
import re
import statistics
import sys

from bench_lines import positive, print_table, ratio, read_line, read_sections, refuse

COUNT = re.compile(r"(?:^adamw|fused AdamW), (\d+) parameters")


def table_row(line):
    """{threads: (GB/s, GB/s with the copy)}"""
    threads, _, rate, _, copy_rate, _ = line.split()
    return {int(threads): (positive(rate), positive(copy_rate))}


def read_table(section):
    """The number of parameters, and the rows below the line that begins with 'threads'."""
    count, inside, rows = None, False, {}
    for where, line in section.lines:
        found = COUNT.search(line)
        if found:
            count = int(found[1])
        elif line.startswith("threads "):
            inside = True
        elif inside and line[:1].isdigit():
            rows |= read_line(where, line, table_row)
    if rows and count is None:
        refuse(f"{section.where}: no line with the number of parameters under '== {section.name}'")
    return count, rows


def gather(paths):
    """By program and thread count, what each round measured."""
    found, counts = {"K25": {}, "PyTorch": {}}, set()
    for section in read_sections(paths, tuple(found)):
        count, rows = read_table(section)
        if rows:
            counts.add(count)
        for threads, rates in rows.items():
            found[section.name].setdefault(threads, []).append(rates)
    for name, rows in found.items():
        if not rows:
            refuse(f"no row of {name}'s AdamW")
    if max(counts) > 1.01 * min(counts):
        refuse(f"K25 and PyTorch updated different numbers of parameters: {sorted(counts)}")
    return found, max(counts)


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    found, count = gather(sys.argv[1:])
    print(f"CPU AdamW, {count} parameters, GB/s")
    table = []
    for threads in sorted(found["K25"].keys() | found["PyTorch"].keys()):
        row = [threads]
        for i in (0, 1):
            pair = [statistics.median(r[i] for r in found[name][threads]) if threads in found[name] else None
                    for name in ("K25", "PyTorch")]
            row += [*pair, ratio(*pair)]
        table.append(row)
    print_table([("threads", "d"), ("K25", ".2f"), ("PyTorch", ".2f"), ("ratio", ".3f"), ("K25 with copy", ".2f"),
                 ("PyTorch with copy", ".2f"), ("ratio", ".3f")], table)


if __name__ == "__main__":
    main()
