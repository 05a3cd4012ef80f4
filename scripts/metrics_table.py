#!/usr/bin/env python3
"""Prints 'step value' for each record of a metrics.jsonl that has KEY.

usage: scripts/metrics_table.py FILE KEY

Training steps have the key loss, evaluations val_loss.
"""
import json
import sys


def rows(path: str, key: str):
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                sys.exit(f"{path}:{number}: not JSON: {error.msg}")
            if "step" in record and record.get(key) is not None:
                yield int(record["step"]), float(record[key])


def main() -> int:
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    try:
        for step, value in rows(sys.argv[1], sys.argv[2]):
            print(step, value)
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
