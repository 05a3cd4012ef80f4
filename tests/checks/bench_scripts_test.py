"""scripts/bench: the table of K25 and its peers, and what the scripts say where something is missing."""
import json
import os
import sys
import unittest

from bench_case import BENCH, ROOT, BenchScriptTest

K25_LINE = ("step ranks=2 tokens=65536 median_ms=555.80 min_ms=550.00 max_ms=560.00 tok/s=117913 gflop/s=1043.0 "
            "gemm_ceiling_gflop/s=1400.0 floor_ms=415.00 floor/median=0.747 mem_gib=61.500")


def peer(name, gpus, tokens, ms, gib):
    return json.dumps({"name": name, "note": "bf16 weights and moments", "gpus": gpus, "tokens": tokens, "ms": ms,
                       "min_ms": ms, "max_ms": ms, "peak_gib": gib, "device": "NVIDIA H200", "torch": "2.11.0"})


class TableTest(BenchScriptTest):
    def table(self, *texts):
        files = []
        for i, text in enumerate(texts):
            files.append(self.folder / f"out{i}")
            files[-1].write_text(text)
        return self.run_it(sys.executable, BENCH / "dense_table.py", *files)

    def test_recorded_outputs(self):
        code, shown, _ = self.table(f"== K25\nk25: warning: x\n{K25_LINE}\ncpu=x86-64-v4 threads=1\n",
                                    f"== FSDP2\nW1130 noise {{\n{peer('FSDP2', 2, 65536, 566.0, 66.3)}\n"
                                    f"{peer('torch.compile', 1, 32768, 510.0, 55.3)}\n")
        self.assertEqual(code, 0, shown)
        _, *lines = shown.splitlines()
        rows = [line.split()[:6] for line in lines]
        self.assertEqual(rows[0][:5], ["K25", "2", "58956", "555.8", "61.5"])
        self.assertEqual(rows[1], ["FSDP2", "2", "57894", "566.0", "66.3", "1.018"])
        self.assertEqual(rows[2], ["torch.compile", "1", "64251", "510.0", "55.3", "0.918"])
        self.assertIn("fp32 masters and moments", lines[0])

    def test_what_cannot_be_read(self):
        for text, part in ((peer("FSDP2", 1, 1, 1.0, 1.0), "no line of k25 bench step"),
                           ("step ranks=2 tokens=1", "out0:1: cannot be read"),
                           (K25_LINE.replace("555.80", "0.00"), "out0:1: cannot be read"),
                           (K25_LINE + '\n{"name": "FSDP2"}', "out0:2: cannot be read"),
                           (K25_LINE + '\n{"name": "FS', "out0:2: cannot be read")):
            code, shown, said = self.table(text)
            self.assertEqual((code, shown), (1, ""), said)
            self.assertIn(part, said)
        code, _, said = self.run_it(sys.executable, BENCH / "dense_table.py", self.folder / "none")
        self.assertEqual(code, 1)
        self.assertIn("none: No such file", said)
        self.assertEqual(self.run_it(sys.executable, BENCH / "dense_table.py")[0], 2)


class DenseTest(BenchScriptTest):
    """dense.sh with stubs for k25, mpirun and a python that has PyTorch and two GPUs."""

    def setUp(self):
        super().setUp()
        self.k25 = self.program("k25", f'echo "k25 $*" >>"{self.folder}/calls"\necho "{K25_LINE}"')
        self.stub_mpirun()
        results = {mode: self.folder / f"{mode}.json" for mode in ("eager", "compile", "fsdp2")}
        for (mode, path), name in zip(results.items(), ("PyTorch eager", "torch.compile", "FSDP2")):
            path.write_text(peer(name, 1, 32768, 600.0, 50.0) + "\n")
        self.python = self.program("python", f"""case "$*" in
  *"import torch; print"*) echo 2 ;;
  *"import torch"*) exit 0 ;;
  *dense_table.py*) exec "{sys.executable}" "$@" ;;
  *) echo "python $*" >>"{self.folder}/calls"
    for mode in eager compile fsdp2; do
      case " $* " in *" $mode "*) cat "{self.folder}/$mode.json" || exit 1 ;; esac
    done ;;
esac""")

    def dense(self, *args):
        return self.run_it("bash", BENCH / "dense.sh", "--k25", self.k25, "--python", self.python, *args,
                           PATH=f"{self.folder}:{os.environ['PATH']}")

    def test_one_gpu(self):
        code, shown, said = self.dense("--steps", "5", "--out", self.folder / "kept")
        self.assertEqual(code, 0, shown + said)
        names = [line.split("  ")[0] for line in shown.splitlines()[-4:]]
        self.assertEqual(names, ["K25", "PyTorch eager", "torch.compile", "FSDP2"])
        self.assertEqual(self.calls()[0], "k25 bench step --config configs/dense-1.3b.yaml --set train.device=cuda "
                                          "--steps 5 --warmup 10")
        self.assertIn("--nproc-per-node 1", self.calls()[-1])
        self.assertIn(K25_LINE, (self.folder / "kept").read_text())

    def test_two_gpus(self):
        code, shown, said = self.dense("--gpus", "2")
        self.assertEqual(code, 0, shown + said)
        calls = self.calls()
        self.assertTrue(calls[0].startswith("mpirun -np 2 --bind-to none "), calls)
        self.assertEqual([line.split("  ")[0] for line in shown.splitlines()[-2:]], ["K25", "FSDP2"])

    def test_a_peer_that_fails_is_named_and_left_out(self):
        (self.folder / "compile.json").unlink()
        code, shown, said = self.dense()
        self.assertEqual(code, 0, shown + said)
        self.assertIn("dense: torch.compile failed with exit code 1", said)
        self.assertEqual(len([line for line in shown.splitlines()[-3:] if "moments" in line]), 3)
        self.assertNotIn("torch.compile  ", shown)

    def test_k25_that_fails_ends_it(self):
        self.program("k25", "echo 'k25: error: out of memory' >&2\n[[ $2 = copy ]]")
        code, shown, said = self.dense()
        self.assertEqual((code, shown), (1, "== K25\n"), said)
        self.assertIn("K25 failed with exit code 1: k25: error: out of memory", said)

    def test_what_is_missing(self):
        for args, part in ((["--gpus", "3"], "PyTorch sees 2 GPUs, asked for 3"),
                           (["--gpus", "0"], "'0' is no positive number"), (["--steps"], "--steps needs a value"),
                           (["--gpu", "1"], "unknown option '--gpu'"), (["--k25", "/none"], "/none is not there"),
                           (["--python", "/none"], "/none is not there"),
                           (["--python", "false"], "false has no PyTorch")):
            code, shown, said = self.dense(*args)
            self.assertEqual((code, shown), (2, ""), said)
            self.assertIn(part, said)


class PeerTest(BenchScriptTest):
    def test_without_torch(self):
        """An interpreter that finds no torch: the scripts say so and end with 2."""
        (self.folder / "torch.py").write_text("raise ImportError('none')\n")
        for script, args in (("dense_torch.py", ["eager"]), ("adamw_cpu.py", [])):
            code, shown, said = self.run_it(sys.executable, BENCH / script, *args, PYTHONPATH=self.folder)
            self.assertEqual((code, shown), (2, ""), said)
            self.assertIn("PyTorch is not installed", said)

    def test_without_a_gpu(self):
        (self.folder / "torch.py").write_text(
            "class cuda:\n    @staticmethod\n    def is_available():\n        return False\n")
        code, shown, said = self.run_it(sys.executable, BENCH / "dense_torch.py", "fsdp2", PYTHONPATH=self.folder)
        self.assertEqual((code, shown), (2, ""), said)
        self.assertIn("sees no GPU", said)

    def test_bad_arguments(self):
        for script, args in (("dense_torch.py", ["fsdp3"]), ("dense_torch.py", ["eager", "--steps", "0"]),
                             ("adamw_cpu.py", ["--threads", "0"])):
            self.assertEqual(self.run_it(sys.executable, BENCH / script, *args)[0], 2)

    def test_sizes_are_those_of_the_config(self):
        code, shown, said = self.run_it(
            sys.executable, "-c", "import dense_torch; print(dense_torch.SIZES)", PYTHONPATH=BENCH)
        self.assertEqual(code, 0, said)
        text = (ROOT / "configs" / "dense-1.3b.yaml").read_text()
        for key, value in eval(shown).items():  # a literal that we wrote
            name = {"batch": "micro_batch"}.get(key, key)
            self.assertIn(f"{name}: {value}", text)


if __name__ == "__main__":
    unittest.main()
