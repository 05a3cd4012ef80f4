#!/usr/bin/env python3
"""Fails when a file has grown past what a reader can hold: 300 lines a header, 800 any other source.

usage: scripts/check_sizes.py [ROOT]
"""
import pathlib
import sys

from repo_files import repo_files, report

HARD = {".h": 300, ".cuh": 800, ".cpp": 800, ".cu": 800, ".py": 800, ".sh": 800, ".cmake": 800}
AIM = 400


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    problems = []
    for path in repo_files(root):
        limit = HARD.get(pathlib.PurePosixPath(path).suffix)
        if limit is None:
            continue
        lines = len((root / path).read_bytes().splitlines())
        if lines > limit:
            problems.append(f"{path}: {lines} lines, at most {limit}")
        elif lines > AIM:
            print(f"{path}: note: {lines} lines, aim below {AIM}")
    return report("sizes", problems)


if __name__ == "__main__":
    sys.exit(main())
