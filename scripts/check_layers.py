#!/usr/bin/env python3
"""Fails when a file or a CMake target depends on something its folder may not (docs/architecture.md).

usage: scripts/check_layers.py [ROOT]

It reads every include and every k25_add_module: folders may depend only as the table allows, a module
only on modules in its DEPS, and these form no cycle. mpi.h and nccl.h stay in .cpp and .cu files of
parallel/, CUDA headers out of public headers, vendor libraries out of the kernel library.
"""
import dataclasses
import pathlib
import posixpath
import re
import sys

from repo_files import TOP_FOLDERS, repo_files, report

# Layer -> layers it may use beside itself. A layer is a top folder, except that kernels/core is one
# of its own: data may see it, but no op.
ALLOWED = {
    "kernels/core": set(),
    "kernels": {"kernels/core"},
    "data": {"kernels/core"},
    "parallel": {"kernels/core", "kernels"},
    "optim": {"kernels/core", "kernels", "parallel"},
    "trainer": {"kernels/core", "kernels", "parallel", "optim", "data"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')
TRANSPORT = re.compile(r"(mpi|nccl)\.h$")
CUDA = re.compile(r"(cuda|cublas|cudnn|cuda_runtime|cuda_runtime_api|cuda_profiler_api|cuda_bf16|cuda_fp16|cublasLt)\.h$"
                  r"|cuda/|cub/|nvtx3/|cooperative_groups")
VENDOR = re.compile(r"(hdf5|H5\w*)\.h$|yaml-cpp/|nlohmann/|CLI/|spdlog/|fmt/|openssl/|sentencepiece|hwloc"
                    r"|xxhash\.h$|Eigen/|unsupported/Eigen")
SOURCE_SUFFIXES = {".h", ".cuh", ".cpp", ".cu"}
KEYWORDS = ("NAME", "HEADERS", "SOURCES", "ISA_SOURCES", "CUDA", "DEPS", "PRIVATE_DEPS")


@dataclasses.dataclass
class Module:
    name: str
    where: str
    folder: str
    headers: set[str]
    files: set[str]
    deps: set[str]


def layer(path: str) -> str:
    parts = path.split("/")
    return "kernels/core" if parts[:2] == ["kernels", "core"] else parts[0]


def parse_modules(root: pathlib.Path, files: list[str]) -> list[Module]:
    modules = []
    for path in files:
        if not path.endswith("CMakeLists.txt"):
            continue
        folder = str(pathlib.PurePosixPath(path).parent)
        text = re.sub(r"#[^\n]*", "", (root / path).read_text())
        for call in re.finditer(r"k25_add_module\s*\(([^)]*)\)", text):
            fields: dict[str, list[str]] = {k: [] for k in KEYWORDS}
            key = ""
            for word in call.group(1).split():
                if word in fields:
                    key = word
                elif key:
                    fields[key].append(word.strip('"'))
            line = text.count("\n", 0, call.start()) + 1
            own = {k: {posixpath.normpath(f"{folder}/{f}") for f in fields[k]} for k in KEYWORDS[1:5]}
            modules.append(Module(
                name=(fields["NAME"] or ["?"])[0], where=f"{path}:{line}", folder=folder,
                headers=own["HEADERS"], files=set().union(*own.values()),
                deps={d.removeprefix("k25::") for d in fields["DEPS"] + fields["PRIVATE_DEPS"]
                      if d.startswith("k25::")}))
    return modules


def may_use(me: str, other: str) -> bool:
    return me not in ALLOWED or other == me or other in ALLOWED[me]


def closure(name: str, by_name: dict[str, Module]) -> set[str]:
    seen: set[str] = set()
    todo = [name]
    while todo:
        module = by_name.get(todo.pop())
        for dep in module.deps - seen if module else ():
            seen.add(dep)
            todo.append(dep)
    return seen


def check_targets(modules: list[Module]) -> list[str]:
    by_name = {m.name: m for m in modules}
    problems = []
    for m in modules:
        for dep in sorted(m.deps):
            if dep == "kernels":  # the whole kernel library under one name
                allowed = may_use(layer(m.folder), "kernels") and layer(m.folder) != "kernels"
            elif dep not in by_name:
                problems.append(f"{m.where}: {m.name} depends on k25::{dep}, which no k25_add_module makes")
                continue
            else:
                allowed = may_use(layer(m.folder), layer(by_name[dep].folder))
            if not allowed:
                problems.append(f"{m.where}: {layer(m.folder)} may not depend on k25::{dep}")
        if m.name in closure(m.name, by_name):
            problems.append(f"{m.where}: {m.name} depends on itself through its DEPS")
    return problems


def check_mpi_targets(root: pathlib.Path, files: list[str]) -> list[str]:
    problems = []
    for path in files:
        if path.endswith("CMakeLists.txt") and layer(path) in ALLOWED and layer(path) != "parallel":
            for number, line in enumerate((root / path).read_text().splitlines(), 1):
                if re.search(r"\bMPI::|\bNCCL::", line.split("#")[0]):
                    problems.append(f"{path}:{number}: only parallel may link MPI or NCCL")
    return problems


class IncludeCheck:
    """The rules for one include line; `public` are headers that the modules install."""

    def __init__(self, root: pathlib.Path, modules: list[Module]):
        self.root = root
        self.by_name = {m.name: m for m in modules}
        self.owner = {f: m for m in modules for f in m.files}
        self.folders: dict[str, list[Module]] = {}
        for m in modules:
            self.folders.setdefault(m.folder, []).append(m)
        self.public = set().union(*(m.headers for m in modules)) if modules else set()

    def module_of(self, path: str) -> Module | None:
        """By the lists in CMake; a private header belongs to the only module of the nearest folder."""
        if path in self.owner:
            return self.owner[path]
        for folder in pathlib.PurePosixPath(path).parents:
            near = self.folders.get(str(folder), [])
            if near:
                return near[0] if len(near) == 1 else None
        return None

    def foreign(self, path: str, target: str) -> str | None:
        """What is wrong with including a header that is not ours."""
        suffix = pathlib.PurePosixPath(path).suffix
        me = layer(path)
        if TRANSPORT.match(target) and me != "tests":
            if me != "parallel" or suffix not in (".cpp", ".cu"):
                return f"{target} only in .cpp and .cu files of parallel"
        if CUDA.match(target):
            if me in ("data", "optim", "trainer"):
                return f"{me} may not include {target}"
            if path in self.public:
                return f"{target} in a public header; kernels/core/cuda_fwd.h has the handle types"
        if VENDOR.match(target) and me in ("kernels", "kernels/core"):
            if not (target.startswith(("Eigen/", "unsupported/Eigen")) and path.startswith("kernels/gemm/")):
                return f"the kernel library may not include {target}"
        return None

    def ours(self, path: str, target: str) -> str | None:
        me, other = layer(path), layer(target)
        if other in ("tests", "scripts", "configs", "docs"):
            return None if me == "tests" else f"{me} may not include {target}"
        if not may_use(me, other):
            return f"{me} may not include {target}"
        if not (self.root / target).is_file():
            return f"no such header: {target}"
        if me not in ALLOWED:
            return None
        if path in self.public and target not in self.public and self.module_of(target):
            return f"a public header includes the private {target}"
        mine, theirs = self.module_of(path), self.module_of(target)
        if mine and theirs and mine is not theirs:
            reach = closure(mine.name, self.by_name)
            if theirs.name not in reach and not ("kernels" in reach and other.startswith("kernels")):
                return f"{target} belongs to k25::{theirs.name}, which is not in the DEPS of {mine.name}"
        return None

    def line(self, path: str, quote: str, target: str) -> str | None:
        if target.startswith(("../", "./")) or "/../" in target:
            return f"relative include {target}; includes start at the repository's root"
        if path.startswith("tests/consumer/"):  # uses the installed library, as a foreign project does
            return None
        if target.split("/")[0] in TOP_FOLDERS and "/" in target:
            return self.ours(path, target)
        if quote == '"' and layer(path) in ALLOWED and not TRANSPORT.match(target) and \
                not CUDA.match(target) and not VENDOR.match(target):
            return f'include "{target}" is not rooted: name the path from the repository\'s root'
        return self.foreign(path, target)


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = repo_files(root)
    modules = parse_modules(root, files)
    problems = check_targets(modules) + check_mpi_targets(root, files)
    check = IncludeCheck(root, modules)
    for path in files:
        if pathlib.PurePosixPath(path).suffix not in SOURCE_SUFFIXES:
            continue
        for number, text in enumerate((root / path).read_text(errors="replace").splitlines(), 1):
            found = INCLUDE.match(text)
            reason = check.line(path, *found.groups()) if found else None
            if reason:
                problems.append(f"{path}:{number}: {reason}")
    return report("layers", problems)


if __name__ == "__main__":
    sys.exit(main())
