#!/usr/bin/env python3
"""Runs the pinned clang-tidy over the .cpp files of a compilation database.

usage: scripts/check_tidy.py --build DIR [--jobs N] [--without-tests] [FILE...]

FILEs are paths relative to the repository's root; without any, all of the database are checked, or all
that are no tests: those double the time. A file
that passed is not looked at again until it, a header of ours that it reaches, its command or
.clang-tidy changes: DIR/tidy-passed holds one empty file per passed fingerprint.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

from repo_files import TOP_FOLDERS, report

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIDY = ROOT / "build/tools/bin/clang-tidy"
SHIM = ROOT / "scripts/clang_shim.h"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
# What g++ knows and clang does not, and what only slows the parse down.
DROPPED = re.compile(r"-fno-sanitize-recover=\S+|-fsanitize=\S+|-mprefer-vector-width=\S+|-Werror")


@functools.cache
def reach(path: pathlib.Path) -> frozenset[pathlib.Path]:
    """`path` and our headers that it includes, directly or not."""
    seen = {path}
    todo = [path]
    while todo:
        for name in INCLUDE.findall(todo.pop().read_text(errors="replace")):
            target = ROOT / name
            if name.split("/")[0] in TOP_FOLDERS and target not in seen and target.is_file():
                seen.add(target)
                todo.append(target)
    return frozenset(seen)


def fingerprint(entry: dict) -> str:
    digest = hashlib.sha256()
    configs = [ROOT / ".clang-tidy", ROOT / "tests/.clang-tidy", SHIM, ROOT / "build/tools/versions"]
    for path in [*configs, *sorted(reach(pathlib.Path(entry["file"])))]:
        digest.update(path.read_bytes() if path.is_file() else b"")
        digest.update(b"\0")
    digest.update(entry["command"].encode())
    return digest.hexdigest()


def wanted_entries(build: pathlib.Path, files: list[str], folders: set[str]) -> list[dict]:
    """One command a file: sources built per instruction set appear three times, the last one is taken."""
    entries: dict[str, dict] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.suffix != ".cpp" or not path.is_relative_to(ROOT):
            continue
        relative = path.relative_to(ROOT)
        if relative.parts[0] not in folders or (files and relative.as_posix() not in files):
            continue
        command = DROPPED.sub("", entry["command"]).replace(" -c ", f" -include '{SHIM}' -c ", 1)
        entries[relative.as_posix()] = {"directory": entry["directory"], "file": str(path), "command": command}
    missing = set(files) - set(entries)
    if missing:
        sys.exit(f"tidy: not in {build}/compile_commands.json: {', '.join(sorted(missing))}")
    return [entries[name] for name in sorted(entries)]


def run_one(entry: dict, database: pathlib.Path, passed: pathlib.Path) -> list[str]:
    """Its complaints, each in one line."""
    mark = passed / fingerprint(entry)
    if mark.exists():
        return []
    done = subprocess.run([TIDY, "--quiet", "-p", database, entry["file"]],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    lines = [line.replace(f"{ROOT}/", "") for line in done.stdout.splitlines()
             if re.search(r": (error|warning): ", line)]
    if done.returncode == 0 and not lines:
        mark.touch()
        return []
    return lines or [f"{entry['file']}: clang-tidy ended with {done.returncode}: {done.stderr.strip()[-500:]}"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--without-tests", action="store_true")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    folders = set(TOP_FOLDERS) - ({"tests"} if options.without_tests else set())
    entries = wanted_entries(options.build.resolve(), options.files, folders)
    if not entries:
        sys.exit(f"tidy: {options.build}/compile_commands.json names none of our files")
    passed = options.build.resolve() / "tidy-passed"
    database = options.build.resolve() / "tidy-database"
    passed.mkdir(exist_ok=True)
    database.mkdir(exist_ok=True)
    (database / "compile_commands.json").write_text(json.dumps(entries))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda e: run_one(e, database, passed), entries)
        problems = sorted({line for lines in results for line in lines})
    print(f"tidy: {len(entries)} files")
    return report("tidy", problems)


if __name__ == "__main__":
    sys.exit(main())
