#!/usr/bin/env python3
"""Fails when a Markdown file names a path of this repository that does not exist.

usage: scripts/check_docs.py [ROOT]

A path is a word that starts with one of the top folders (kernels/core/isa.h, tests/kernels/*), a file
of the root by its usual name (README.md, CMakePresets.json), or the target of a relative link.
Words with a placeholder (<op>, NAME in capitals only) are no paths.
"""
import pathlib
import re
import sys

from repo_files import TOP_FOLDERS, repo_files, report

PATH = re.compile(r"(?<![\w./<-])(?:%s|\.ci)/[\w.*{},/<>-]*" % "|".join(TOP_FOLDERS))
ROOT_FILE = re.compile(r"(?<![\w./-])(?:[A-Z]+\.md|CMakeLists\.txt|CMakePresets\.json|LICENSE|\.clang-\w+)(?![\w/])")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
BRACES = re.compile(r"\{([^{}]*)\}")


def expand(path: str) -> list[str]:
    found = BRACES.search(path)
    if not found:
        return [path]
    return [p for part in found.group(1).split(",")
            for p in expand(path[:found.start()] + part + path[found.end():])]


def exists(base: pathlib.Path, path: str) -> bool:
    path = path.rstrip("/")
    return any(base.glob(path)) if "*" in path else (base / path).exists()


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    problems = []
    for doc in repo_files(root):
        if not doc.endswith(".md"):
            continue
        for number, line in enumerate((root / doc).read_text().splitlines(), 1):
            named = [p.rstrip(".,") for p in PATH.findall(line)]
            named = [p for p in named if "<" not in p and not re.search(r"/[A-Z]+(/|$)", p)]
            for path in dict.fromkeys(q for p in named + ROOT_FILE.findall(line) for q in expand(p)):
                if not exists(root, path):
                    problems.append(f"{doc}:{number}: {path} does not exist")
            for link in LINK.findall(line):
                if "://" not in link and not exists((root / doc).parent, link):
                    problems.append(f"{doc}:{number}: link to {link}, which does not exist")
    return report("docs", problems)


if __name__ == "__main__":
    sys.exit(main())
