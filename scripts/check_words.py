#!/usr/bin/env python3
"""Fails on text that must not be in the repository.

usage: scripts/check_words.py [ROOT]

This machine's paths (the checkout, the home folder), hosts of its package sources, a to-do mark
without an issue number, unscoped enums, using-directives in headers,
non-ASCII text and tabs in C++, and trailing blanks.
"""
import os
import pathlib
import re
import sys

from repo_files import repo_files, report

CPP = {".h", ".cuh", ".cpp", ".cu"}
TEXT = CPP | {".py", ".sh", ".cmake", ".md", ".txt", ".yaml", ".json", ".in", ".supp", ""}
COMMON_FOLDERS = {"home", "root", "tmp", "usr", "opt", "srv", "var", "mnt", "media", "data", "build"}
# Each rule: pattern, files it holds for (None: all), what is wrong.
RULES = [
    (re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b(?!\(#\d+\))"), None, "name the issue: TO" "DO(#12)"),
    (re.compile(r"^\s*enum\s+(?!class\b)\w*"), CPP, "enum class only"),
    (re.compile(r"^\s*using\s+namespace\b"), {".h", ".cuh"}, "no using-directives in headers"),
    (re.compile(r"[^\x00-\x7f]"), CPP, "C++ sources are ASCII"),
    (re.compile(r"\t"), CPP | {".py", ".sh", ".cmake"}, "no tabs"),
    (re.compile(r"[ \t]+$"), None, "blanks at the end of the line"),
]


def machine_patterns(root: pathlib.Path) -> list[re.Pattern]:
    """Taken from the machine, so that none of them needs to stand in a file."""
    words = {f"{root}/"}
    home = os.path.expanduser("~")
    if len(home) > 1:
        words.add(f"{home}/")
    if len(root.parts) > 2 and root.parts[1] not in COMMON_FOLDERS:
        words.add(f"/{root.parts[1]}/")
    sources = [pathlib.Path("/etc/apt/sources.list"), *pathlib.Path("/etc/apt").glob("sources.list.d/*")]
    for config in ("/etc/pip.conf", "/etc/xdg/pip/pip.conf"):
        sources.append(pathlib.Path(config))
    for source in sources:
        try:
            words |= set(re.findall(r"https?://([^/\s\"']+)", source.read_text()))
        except OSError:
            continue
    return [re.compile(r"(?<![\w-])" + re.escape(w)) for w in sorted(words) if len(w) > 4]


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    machine = machine_patterns(root)
    problems = []
    for path in repo_files(root):
        suffix = pathlib.PurePosixPath(path).suffix
        if suffix not in TEXT or path == "LICENSE":
            continue
        try:
            text = (root / path).read_text()
        except UnicodeDecodeError:
            problems.append(f"{path}: not UTF-8")
            continue
        for number, line in enumerate(text.split("\n"), 1):
            for pattern, suffixes, why in RULES:
                if (suffixes is None or suffix in suffixes) and pattern.search(line):
                    problems.append(f"{path}:{number}: {why}")
            for pattern in machine:
                if pattern.search(line):
                    problems.append(f"{path}:{number}: names a path or host of this machine")
        if text and not text.endswith("\n"):
            problems.append(f"{path}: no newline at the end")
    return report("words", problems)


if __name__ == "__main__":
    sys.exit(main())
