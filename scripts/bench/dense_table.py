#!/usr/bin/env python3
"""One table of what K25 and its peers printed in one run: scripts/bench/dense_table.py FILE...

Reads the line of `k25 bench step` and the JSON lines of scripts/bench/dense_torch.py; other lines are passed over. A peer
without a GPU count of K25's is compared by tokens/s a GPU all the same. Ratio: tokens/s a GPU of K25 over the peer's.
"""
import json
import sys

from bench_lines import numbered_lines, positive, read_line, refuse, words


def row(name, note, gpus, tokens, ms, gib):
    return {"name": name, "note": note, "gpus": gpus, "ms": positive(ms), "rate": tokens / ms * 1e3 / gpus, "gib": gib}


def own_row(line):
    values = words(line)
    return row("K25", "fp32 masters and moments", int(values["ranks"]), float(values["tokens"]),
               float(values["median_ms"]), float(values["mem_gib"]))


def peer_row(line):
    v = json.loads(line)
    return row(v["name"], v["note"], v["gpus"], v["tokens"], v["ms"], v["peak_gib"])


def read(paths):
    rows = []
    for where, line in numbered_lines(paths):
        if line.startswith("step ranks="):
            rows.append(read_line(where, line, own_row))
        elif line.startswith('{"name"'):
            rows.append(read_line(where, line, peer_row))
    return rows


def table(rows):
    """K25 first; its last line counts where there are several."""
    own = [r for r in rows if r["name"] == "K25"]
    if not own:
        refuse("no line of k25 bench step (it begins with 'step ranks=')")
    rows = [own[-1]] + [r for r in rows if r["name"] != "K25"]
    text = f"{'':<16}{'GPUs':>5}{'tokens/s a GPU':>16}{'ms a step':>11}{'peak GiB':>10}{'K25 / it':>10}  states\n"
    for r in rows:
        ratio = "" if r is rows[0] else f"{own[-1]['rate'] / r['rate']:.3f}"
        text += (f"{r['name']:<16}{r['gpus']:>5}{r['rate']:>16.0f}{r['ms']:>11.1f}{r['gib']:>10.1f}{ratio:>10}"
                 f"  {r['note']}\n")
    return text


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    rows = read(sys.argv[1:])
    print(table(rows), end="")


if __name__ == "__main__":
    main()
