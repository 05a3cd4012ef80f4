"""Which files the checks look at: the repository's own, in a git work tree or unpacked elsewhere."""
import pathlib
import subprocess

TOP_FOLDERS = ("trainer", "optim", "parallel", "data", "kernels", "configs", "scripts", "tests", "docs")
_GENERATED = {"build", "runs", "corpus", "__pycache__", ".git"}


def repo_files(root: pathlib.Path) -> list[str]:
    """Paths relative to `root`, sorted: tracked ones and new ones that git does not ignore."""
    if (root / ".git").exists():
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, capture_output=True).stdout.decode()
        names = {n for n in listed.split("\0") if n and (root / n).is_file()}
    else:
        names = {p.relative_to(root).as_posix() for p in root.rglob("*")
                 if p.is_file() and not _GENERATED & set(p.relative_to(root).parts)}
    return sorted(names)


def report(name: str, problems: list[str]) -> int:
    """Prints what is wrong, or that nothing is; the exit code of a check."""
    for problem in problems:
        print(problem)
    print(f"{name}: {len(problems)} problems" if problems else f"{name}: ok")
    return 1 if problems else 0
