"""scripts/bench with k25 itself, a tiny model and the CPU: what it prints is what the tables read. No speed is asserted."""
import pathlib
import subprocess
import unittest

import k25_testing as kt

BENCH = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "bench"
SMALL = ("train.device=cpu", "train.batch=auto", "train.micro_batch=1", "train.accumulation=2", "data.sequence=32")


class BenchScriptsTest(kt.K25Test):
    def bench(self, script, *args, changes=SMALL, code=0):
        """The lines of its table, cut into words."""
        overrides = [word for change in changes for word in ("--set", change)]
        # The folder stands on the command line of each process, so that one left behind is found.
        done = subprocess.run(["bash", BENCH / script, "--k25", kt.K25, "--config", self.write_config(), *overrides, *args],
                              env=kt.environment(), capture_output=True, text=True, timeout=250, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def train(self, script, *args, **options):
        return self.bench(script, "--corpus", kt.corpus().parent, *args, **options)

    def test_offload(self):
        rows = [line.split() for line in self.bench("offload.sh", "--steps", "2", "--threads", "1")[-5:]]
        self.assertEqual([row[0] for row in rows], ["none", "optimizer", "optimizer-resident", "both", "both-resident"])
        self.assertEqual(rows[0][-5:], ["-"] * 5)
        self.assertEqual([row[-2] for row in rows[1:]], ["1"] * 4)  # threads

    def test_recompute(self):
        rows = [line.split() for line in self.bench("recompute.sh", "--steps", "2", "--warmup", "0")[-4:]]
        self.assertEqual([row[0] for row in rows], ["none", "cheap", "middle", "all"])
        self.assertNotIn("-", [row[2] for row in rows[1:]])  # ratios

    def test_scaling(self):
        rows = [line.split() for line in self.bench("scaling.sh", "--steps", "2", "--warmup", "0")[-4:]]
        self.assertEqual([row[:2] for row in rows],
                         [[ranks, mode] for mode in ("ordered", "library") for ranks in "12"])

    def test_recipe(self):
        """Offload changes no bit, and no checkpoint is written."""
        lines = self.train("recipe_32l.sh", "--steps", "4", "--warmup", "1", "--out", self.folder / "kept",
                           changes=("train.device=cpu", "data.sequence=32", f"run.dir={self.run_dir}"))
        self.assertEqual(lines[-1], "losses equal: yes, over 4 steps")
        self.assertEqual([line.split()[:2] for line in lines[-4:-2]], [["off", "2"], ["on", "2"]])
        self.assertEqual(list((self.run_dir / "checkpoints").glob("*")), [])

    def test_losses_that_differ(self):
        """Two rows of unlike runs, kept apart and then compared."""
        for row, rate in (("off", "1e-3"), ("on", "2e-3")):
            self.train("recipe_32l.sh", "--rows", row, "--steps", "3", "--warmup", "1", "--out", self.folder / row,
                       changes=("train.device=cpu", "data.sequence=32", f"optim.lr={rate}"))
        done = subprocess.run([BENCH / "train_table.py", "recipe", "--steps", "3", "--warmup", "1", self.folder / "off",
                               self.folder / "on"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("losses equal: no (2 of 3 steps differ; step 2: ", done.stdout)

    def test_watch(self):
        lines = self.train("watch_cost.sh", "--steps", "4", "--warmup", "2", "--out", self.folder / "kept")
        self.assertEqual([line.split()[:2] for line in lines[-6:-2]], [["off", "4"], ["on", "4"]] * 2)
        self.assertIn("in 2 pairs", lines[-1])

    def test_a_corpus_of_its_own(self):
        """Without --corpus the repository's text."""
        lines = self.bench("watch_cost.sh", "--steps", "1", "--warmup", "1", "--pairs", "1",
                           changes=(*SMALL, "model.vocab=1000"))
        self.assertIn("one pair has no spread", lines[-1])


if __name__ == "__main__":
    unittest.main()
