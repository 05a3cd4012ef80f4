"""One GPU: k25 doctor, bench and plan. No speed is asserted."""

import unittest

import k25_testing
from gpu_testing import ON_GPU, GpuTest
from k25_testing import DEVICE

SIZES = ["--rows", "1024", "--sequence", "512", "--hidden", "64", "--heads", "2", "--kv-heads", "1",
         "--head-dim", "32", "--ffn", "96", "--vocab", "500"]
OPS = {"residual", "swiglu forward", "swiglu backward", "rope", "rmsnorm + residual forward", "rmsnorm backward",
       "embedding forward", "embedding backward", "adamw", "chunk square sums", "ordered sum", "gemm forward",
       "gemm input gradient", "gemm weight gradient", "attention forward", "attention backward",
       "cross-entropy forward", "cross-entropy training"}
COPIES = {"device", "host to device, pinned", "device to host, pinned", "host to device, pageable",
          "device to host, pageable", "both at once, pinned"}


class Doctor(GpuTest):
    def found(self, ranks=None):
        shown = self.assert_ok(k25_testing.run(["doctor", "--json", "--run-dir", self.folder], ranks))
        return k25_testing.parse_json(shown.stdout)["findings"]

    def test_it_finds_the_gpus(self):
        found = self.found()
        cards = [f["found"] for f in found if f["topic"] == "gpu" and f["severity"] == "ok"]
        self.assertEqual(len(cards) >= k25_testing.gpu_count() > 0, ON_GPU, found)
        for card in cards:
            self.assertRegex(card, r"^\d+ .+ at [0-9A-Fa-f:.]+: \d+ bytes .+ NVLinks$")
        versions = next(f["found"] for f in found if f["topic"] == "versions")
        self.assertRegex(versions, r"CUDA \d+\.\d+ \(driver \d+.*cuBLASLt \d+.*NCCL \d" if ON_GPU else "no CUDA")

    def test_it_warns_of_too_many_ranks(self):
        self.skip_on_cpu()
        ranks = k25_testing.gpu_count() + 1
        self.assertIn(f"{ranks} ranks for {ranks - 1} GPUs",
                      [f["found"] for f in self.found(ranks) if f["severity"] == "warning"])


class Bench(GpuTest):
    def table(self, args, first=4):
        """What was printed, and [(name, five cells)] of the lines from `first` on."""
        text = self.assert_ok(k25_testing.run(["bench", *args, "--device", DEVICE])).stdout
        return text, [(line[:28].strip(), line[28:].split()) for line in text.splitlines()[first:]]

    def test_op(self):
        for precision in ("bf16", "fp32"):
            _, rows = self.table(["op", *SIZES, "--precision", precision])
            self.assertLessEqual(OPS, {name for name, _ in rows})
            for name, cells in rows:
                self.assertEqual(len(cells), 5, name)
                self.assertGreater(float(cells[0]), 0, name)

    def test_op_adamw_has_a_line_of_the_gpu(self):
        text, _ = self.table(["op", "adamw", "--hidden", "64", "--ffn", "96"])
        last = text.splitlines()[-1].split()
        self.assertEqual(last[0] == "GPU", ON_GPU)
        self.assertGreater(float(last[3]), 0)

    def test_copy(self):
        text, rows = self.table(["copy", "--min-bytes", "1048576", "--max-bytes", "4194304"], 3)
        self.assertEqual("on cpu;" in text, not ON_GPU)
        names = [name for name, _ in rows]
        self.assertEqual(set(names) & COPIES, COPIES if ON_GPU else set())
        self.assertEqual(names.count("host, 1 thread"), 2)
        for name, cells in rows:
            passes = 2 if name.startswith("host, ") or name in ("device", "both at once, pinned") else 1
            moved = float(cells[1]) * float(cells[2]) * 1e3  # microseconds times GB/s
            self.assertAlmostEqual(moved / (passes * int(cells[0])), 1, delta=0.01, msg=name)

    def test_comm(self):
        self.check_bench_comm(1)

    def test_step(self):
        self.check_bench_step()


class Plan(GpuTest):
    def test_recompute(self):
        self.check_planned_peaks({"recompute.layers": "all"})

    def test_offload(self):
        self.check_planned_peaks({"offload.optimizer": "host", "offload.params": "host"})


if __name__ == "__main__":
    unittest.main()
