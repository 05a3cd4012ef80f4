"""What the tests of scripts/bench share: a folder of stubs, and a line of k25 bench step."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts" / "bench"


def step_line(ranks=1, tokens=32768, ms=500.0, peak=40.0, planned=40.0, states=18.0):
    return (f"step ranks={ranks} tokens={tokens} median_ms={ms:.2f} min_ms={ms:.2f} max_ms={ms:.2f} "
            f"tok/s={1e3 * tokens / ms:.0f} gflop/s=1.0 gemm_ceiling_gflop/s=2.0 floor_ms=1.00 floor/median=0.500 "
            f"mem_gib={peak:.3f} planned_gib={planned:.3f} model_state_gib={states:.3f}")


def offload_line(copy=1.0, cpu=193.0, exposed=80.0, threads=31, host=23.5):
    return (f"offload copy_ms={copy:.2f} cpu_ms={cpu:.2f} exposed_ms={exposed:.2f} threads={threads} "
            f"host_gib={host:.3f}")


class BenchScriptTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="k25 bench-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def run_it(self, *command, **environment):
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
        done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def program(self, name, body):
        path = self.folder / name
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)
        return path

    def write(self, name, *lines):
        path = self.folder / name
        path.write_text("".join(line + "\n" for line in lines))
        return path

    def calls(self):
        return (self.folder / "calls").read_text().splitlines()

    def stub_mpirun(self):
        self.program("mpirun", f'echo "mpirun $*" >>"{self.folder}/calls"\nshift 4\nexec "$@"')
