"""scripts/bench: which runs each script starts, with stubs for k25, mpirun and python; tests/system has the same with k25."""
import os
import sys
import unittest

from bench_case import BENCH, BenchScriptTest, offload_line, step_line

STEP = "--config configs/dense-1.3b.yaml --set train.device=cuda"


class RowsTest(BenchScriptTest):
    def setUp(self):
        super().setUp()
        self.stub_mpirun()
        self.stub_k25(step_line())

    def stub_k25(self, line, *cases):
        """Prints `line`, unless a case takes its arguments; k25 bench copy always ends well."""
        self.k25 = self.program("k25", "\n".join((
            f'echo "k25 $*" >>"{self.folder}/calls"', 'case "$*" in', '*"bench copy"*) ;;', *cases,
            f'*) echo "{line}" ;;', "esac")))

    def bench(self, script, *args):
        return self.run_it("bash", BENCH / script, "--k25", self.k25, "--python", sys.executable, *args,
                           PATH=f"{self.folder}:{os.environ['PATH']}")

    def sets(self, call):
        """The values of --set of a call."""
        return [part.split(" --")[0].strip() for part in call.split("--set ")[1:]]


class StepRowsTest(RowsTest):
    def test_offload(self):
        self.stub_k25(f"{step_line()}\n{offload_line()}")
        code, shown, said = self.bench("offload.sh", "--threads", "15")
        self.assertEqual(code, 0, said)
        calls = self.calls()
        self.assertEqual(calls[0], f"k25 bench step {STEP} --set data.sequence=2048 --set train.batch=auto --set train.accumulation=8 "
                                   "--set offload={} --steps 5 --warmup 2")
        self.assertEqual([self.sets(call.split(" --steps")[0])[-1] for call in calls], [
            "offload={}", "offload={optimizer: host, threads: 15}",
            "offload={optimizer: host, resident: 0.33, threads: 15}",
            "offload={optimizer: host, params: host, threads: 15}",
            "offload={optimizer: host, params: host, resident: 0.33, threads: 15}"])
        self.assertEqual([line.split()[0] for line in shown.splitlines()[-5:]],
                         ["none", "optimizer", "optimizer-resident", "both", "both-resident"])

    def test_recompute_on_two_gpus(self):
        self.stub_k25(step_line(2, 65536))
        code, _, said = self.bench("recompute.sh", "--gpus", "2", "--set", "train.micro_batch=4", "--steps", "3")
        self.assertEqual(code, 0, said)
        calls = [call for call in self.calls() if call.startswith("mpirun")]
        self.assertEqual(len(calls), 4)
        self.assertTrue(all(call.startswith("mpirun -np 2 --bind-to none ") for call in calls))
        self.assertEqual([self.sets(call.split(" --steps")[0])[1:] for call in calls],
                         [[f"recompute={{{what}}}", "train.micro_batch=4"]
                          for what in ("", "cheap: true", "layers: middle", "layers: all")])

    def test_scaling(self):
        self.stub_k25(step_line(), f'*library*) echo "{step_line(2, 65536)}" ;;')
        code, shown, said = self.bench("scaling.sh", "--rows", "ordered")
        self.assertEqual((code, shown.count("== ")), (1, 2), said)
        self.assertIn("'== 2 ordered' was run by 1 ranks", said)
        calls = [call for call in self.calls() if call.startswith("k25")]
        self.assertEqual([self.sets(call.split(" --steps")[0])[-1] for call in calls], ["reduce.mode=ordered"] * 2)

    def test_some_rows(self):
        """In the script's order."""
        code, shown, said = self.bench("recompute.sh", "--rows", "all,none", "--out", self.folder / "kept")
        self.assertEqual(code, 0, said)
        self.assertEqual([line.split()[0] for line in shown.splitlines()[-2:]], ["none", "all"])
        self.assertIn("== all\nstep ranks=1", (self.folder / "kept").read_text())

    def test_a_row_that_fails_is_named_and_left_out(self):
        self.stub_k25(step_line(), "*cheap*) echo 'k25: error: needs 9 bytes'; exit 2 ;;")
        code, shown, said = self.bench("recompute.sh")
        self.assertEqual(code, 1, said)
        self.assertIn("recompute: cheap failed with exit code 2: k25: error: needs 9 bytes", said)
        self.assertEqual(shown.splitlines()[-3].split(), ["cheap"] + ["-"] * 6)

    def test_a_machine_without_gpu(self):
        """One row is enough to know."""
        self.program("k25", f'echo "$*" >>"{self.folder}/calls"\necho "k25: error: no GPU"\nexit 2')
        code, shown, said = self.bench("offload.sh")
        self.assertEqual((code, shown), (2, "== none\n"), said)
        self.assertIn("offload: K25 does not start on 1 x cuda: k25: error: no GPU", said)
        self.assertEqual(len(self.calls()), 2)

    def test_bad_arguments(self):
        for script, args, part in (("offload.sh", ["--threads", "x"], "'x' is no positive number"),
                                   ("offload.sh", ["--rows", "none,none"], "each once"),
                                   ("recompute.sh", ["--rows", "some"], "rows are none,cheap,middle,all"),
                                   ("recompute.sh", ["--warmup", "-1"], "'-1' is no positive number"),
                                   ("recompute.sh", ["--threads", "1"], "unknown option '--threads'"),
                                   ("recompute.sh", ["steps", "1"], "unknown option 'steps'"),
                                   ("recompute.sh", ["--gpus steps", "1"], "unknown option '--gpus steps'"),
                                   ("recompute.sh", ["--config", "/none"], "/none cannot be read"),
                                   ("scaling.sh", ["--gpus", "1"], "--gpus 1 scales nothing"),
                                   ("watch_cost.sh", ["--pairs", "0"], "'0' is no positive number"),
                                   ("recipe_32l.sh", ["--steps", "3"], "--warmup 3 leaves none of --steps 3"),
                                   ("recipe_32l.sh", ["--corpus", "/none"], "/none holds no manifest.json")):
            code, shown, said = self.bench(script, *args)
            self.assertEqual((code, shown), (2, ""), said)
            self.assertIn(part, said)
        code, shown, _ = self.bench("recipe_32l.sh", "--help")
        self.assertEqual(code, 0)
        self.assertIn("scripts/bench/recipe_32l.sh [--gpus N]", shown)
        self.assertNotIn("source", shown)


class TrainRowsTest(RowsTest):
    def setUp(self):
        super().setUp()
        (self.folder / "corpus").mkdir()
        self.write("corpus/manifest.json", "{}")

    def train(self, script, *args):
        return self.bench(script, "--corpus", self.folder / "corpus", *args)

    def test_recipe(self):
        """A run that ends by itself has not done what was asked for: the exit code of the steps is 143."""
        code, _, said = self.train("recipe_32l.sh")
        self.assertEqual(code, 1)
        self.assertIn("recipe_32l: off failed with exit code 0", said)
        off, on = [call for call in self.calls() if call.startswith("k25 train")]
        self.assertTrue(off.startswith("k25 train configs/recipe-32l.yaml --set train.device=cuda"))
        for part in ("train.batch=32", "train.micro_batch=2", "reduce.slots=16", "zero.reshard_after=forward",
                     f"data.train={self.folder}/corpus/manifest.json", "checkpoint.every=0",
                     "debug.kill={rank: 0, point: step, step: 21, signal: 15}"):
            self.assertIn(f"--set {part}", off)
            self.assertIn(f"--set {part}", on)
        self.assertIn("--set offload={} ", off)
        self.assertIn("--set offload={optimizer: host, params: host} ", on)

    def test_watch(self):
        """Alternating, and with lines that come every 10 ms it cannot tell 0.2 %, but makes its table."""
        self.stub_k25("", '*train*) for i in 1 2 3 4; do echo "step=$i/9 loss=1.5"; sleep 0.01; done; exit 143 ;;')
        code, shown, said = self.train("watch_cost.sh", "--steps", "2", "--warmup", "2", "--gpus", "2")
        self.assertEqual(code, 0, said)
        calls = [call for call in self.calls() if call.startswith("k25 train")]
        self.assertEqual([call.split("log.hardware=")[1].split(" --set debug")[0] for call in calls],
                         ["false --set log.stall_s=1e6", "true --set log.stall_s=0.5"] * 2)
        self.assertTrue(all("step: 5, signal: 15" in call for call in calls))
        self.assertIn("in 2 pairs", shown)
        self.assertEqual([line.split()[:2] for line in shown.splitlines() if line.startswith(("off", "on"))],
                         [["off", "2"], ["on", "2"]] * 2)


class AdamwRowsTest(RowsTest):
    def setUp(self):
        super().setUp()
        own = "threads x\n1 1 10 1 9 1\n2 1 20 1 18 1"
        self.stub_k25(f"adamw, 6144 parameters\n{own}")
        self.python = self.program("python", f"""case "$*" in
  *adamw_table.py*) exec "{sys.executable}" "$@" ;;
  -c*) ;;
  *) echo "python $*" >>"{self.folder}/calls"; echo "torch x fused AdamW, 6144 parameters"; echo "{own}" ;;
esac""")

    def test_rounds_alternate(self):
        cpu = min(os.sched_getaffinity(0))
        code, shown, said = self.bench("adamw.sh", "--python", self.python, "--threads", "1,2", "--ffn", "1", "--cpus", cpu)
        self.assertEqual(code, 0, said)
        self.assertEqual(self.calls(), [
            "k25 bench op adamw --device cpu --threads 1 2 --hidden 2048 --ffn 1",
            "python scripts/bench/adamw_cpu.py --parameters 6144 --threads 1 2"] * 2)
        self.assertEqual(shown.splitlines()[-1].split(), "2 20.00 20.00 1.000 18.00 18.00 1.000".split())

    def test_what_is_missing(self):
        for args, part in ((["--threads", "1,x"], "'x' is no positive number"), (["--cpus", "none"], "taskset"),
                           (["--rounds", "0"], "'0' is no positive number"), (["--python", "false"], "has no PyTorch")):
            code, _, said = self.bench("adamw.sh", "--python", self.python, *args)
            self.assertEqual(code, 2, said)
            self.assertIn(part, said)


if __name__ == "__main__":
    unittest.main()
