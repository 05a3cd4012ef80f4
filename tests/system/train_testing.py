"""Runs of the training system tests: an ordered configuration, ranks by process id, jobs of unlike ranks."""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import k25_testing
from k25_testing import K25, K25Test

# 12 slots: the bits are those of any rank count that divides 12.
ORDERED = {"train.batch": 24, "train.micro_batch": 2, "reduce.slots": 12, "train.steps": 20,
           "data.validation": None, "optim.weight_decay": 0.1, "optim.clip": 1.0, "optim.lr": 5e-3}


def rank_pids(text):
    """Process ids by rank of the live k25 processes with `text` on their command line. Not of what a sanitizer's leak
    check starts below a rank: a process of the same name, without which the rank waits for ever."""
    def read(pid, file):
        return (pathlib.Path("/proc") / str(pid) / file).read_bytes()

    pids = {}
    for pid in k25_testing.processes_naming(text):
        try:
            parent = int(read(pid, "stat").rsplit(b")", 1)[1].split()[1])
            program, above = (read(p, "cmdline").split(b"\0")[0] for p in (pid, parent))
            rank = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", read(pid, "environ"))
        except OSError:
            continue
        if program == os.fsencode(K25) != above and rank:
            pids[int(rank.group(1))] = pid
    return pids


def rewrite_manifest(folder, change=lambda manifest: None):
    """Changes a checkpoint's manifest and makes all its digests true again, as k25 would have written it."""
    path = pathlib.Path(folder) / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    for file in manifest["files"]:
        content = (pathlib.Path(folder) / file["name"]).read_bytes()
        file["size"], file["blocks"] = len(content), [hashlib.sha256(content).hexdigest()]
    manifest.pop("sha256")
    plain = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    manifest["sha256"] = hashlib.sha256(plain.encode()).hexdigest()
    path.write_text(json.dumps(manifest))


class TrainTest(K25Test):
    def ordered(self, changes=None, ranks=None, name="run", **options):
        """Trains the 12-slot configuration into self.folder/name; returns the folder."""
        folder = self.folder / name
        result = self.train({**ORDERED, **(changes or {})}, ranks, run_dir=folder, **options)
        self.assert_ok(result)
        return folder

    def start_train(self, changes=None, ranks=None, args=(), **options):
        path = self.write_config(changes)
        return k25_testing.start(["train", path, *args], ranks, **options)

    def wait_for(self, condition, process=None, seconds=60.0):
        """Until `condition()`; a process that ends first is a failure."""
        end = time.monotonic() + seconds * k25_testing.slowness()
        while not condition():
            if process is not None and process.poll() is not None:
                self.fail(str(k25_testing.finish(process)))
            if time.monotonic() > end:
                if process is not None:
                    os.killpg(process.pid, signal.SIGKILL)
                self.fail("what was waited for did not come")
            time.sleep(0.01)

    def steps_done(self, run_dir=None):
        path = pathlib.Path(run_dir or self.run_dir) / "metrics.jsonl"
        if not path.exists():
            return 0
        found = re.findall(r'^\{"step":(\d+),"steps"', path.read_text(), re.M)
        return int(found[-1]) if found else 0

    def saved_steps(self, run_dir=None):
        folder = pathlib.Path(run_dir or self.run_dir) / "checkpoints"
        return sorted(int(p.name[5:]) for p in folder.glob("step-*") if p.name[5:].isdigit())

    def shard(self, step, rank=0, run_dir=None):
        return (pathlib.Path(run_dir or self.run_dir) / "checkpoints" / f"step-{step:06}" /
                f"rank-{rank:05}.h5")

    def run_unlike(self, parts, timeout=120.0, env=None):
        """One job of several parts: [(ranks, mpirun options, program prefix, k25 arguments)]."""
        line = ["mpirun", "-q"]
        for i, (ranks, options, prefix, args) in enumerate(parts):
            line += ([":"] if i else []) + ["-np", str(ranks), *options, *prefix, K25]
            line += [str(a) for a in args]
        begin = time.monotonic()
        process = subprocess.Popen(line, env=k25_testing.environment(env), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
        return k25_testing.finish(process, timeout, begin)
