"""What the tests of training on GPUs share (gpu_*_test.py). K25_TEST_DEVICE=cpu tries them out without a GPU."""

import json
import os
import re

import k25_testing
from device_checks import losses
from k25_testing import DEVICE, state_hash
from train_testing import ORDERED, TrainTest

ON_GPU = DEVICE == "cuda"
BF16 = {"train.precision": "bf16"}
# Large enough that 5 % of it is more than roundings; on a CPU as large as seconds allow.
WIDE = ({"model.layers": 4, "model.hidden": 1024, "model.heads": 16, "model.kv_heads": 8, "model.ffn": 2816,
         "model.vocab": 8000, "data.sequence": 1024} if ON_GPU else
        {"model.layers": 4, "model.hidden": 64, "model.ffn": 160, "data.sequence": 64})
PLANNED = {**WIDE, **BF16, "train.steps": 2, "train.batch": 8, "train.micro_batch": 2, "data.validation": None}
CONTEXT_BYTES = 1.5 * 2**30  # what k25 plan leaves to the CUDA context and the libraries (docs/usage.md)


def long_sequences():
    """Keys of a model whose attention is cuDNN's in bf16: rows of 512 tokens; two gradient slots."""
    manifest = k25_testing.corpus({"law": {f"text{i}.txt": k25_testing.words(1200, i) for i in range(8)}})
    return {"data.train": str(manifest), "data.sequence": 512, "model.hidden": 64, "model.ffn": 96,
            "train.batch": 4, "train.micro_batch": 2, "reduce.slots": 2, "optim.lr": 1e-3}


def visible_gpus():
    """The names that CUDA_VISIBLE_DEVICES gives them here, or would give."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(max(2, k25_testing.gpu_count()))]


class GpuTest(TrainTest):
    gpus = 1  # as many as a test needs
    keys = {"train.device": DEVICE}

    def setUp(self):
        k25_testing.require_gpus(self.gpus)
        super().setUp()

    def skip_on_cpu(self):
        if not ON_GPU:
            self.skipTest("means nothing on a CPU")

    def assert_near(self, run, other, limit):
        """The losses of two runs, step by step, within a part `limit` of them."""
        one, two = k25_testing.steps(run), k25_testing.steps(other)
        self.assertEqual([s["step"] for s in one], [s["step"] for s in two])
        for a, b in zip(one, two):
            self.assertEqual((a["samples"], a["tokens"]), (b["samples"], b["tokens"]))
            self.assertAlmostEqual(a["loss"] / b["loss"], 1.0, delta=limit, msg=f"step {a['step']}")

    def check_same_bits(self, precision, ranks):
        """40 steps with either rank count: equal losses, parameters and moments."""
        changes = {**long_sequences(), "train.steps": 40, "train.precision": precision}
        one, two = (self.ordered(changes, count, name=f"run-{i}") for i, count in enumerate(ranks))
        self.assertEqual(losses(one), losses(two))
        self.assertEqual(state_hash(one), state_hash(two))

    def assert_planned_peak(self, changes, ranks=None):
        """`k25 plan` says within 5 % how much device memory a run takes."""
        changes = {**PLANNED, **changes}
        path = self.write_config(changes)
        card = "h200" if ON_GPU else "cpu"
        shown = self.assert_ok(k25_testing.run(["plan", path, "--gpus", ranks or 1, "--gpu", card])).stdout
        planned = int(re.search(r"^planned +(\d+)", shown, re.M).group(1))
        result = self.assert_ok(self.train(changes, ranks, args=["--profile-memory"]))
        least, most = map(int, re.search(r"peaked at (\d+) to (\d+) bytes a rank", result.stdout).groups())
        self.assertLessEqual(0.95 * planned, least, shown)
        self.assertLessEqual(most, 1.05 * planned, shown)
        memory = json.loads((self.run_dir / "memory.json").read_text())
        self.assertTrue(least <= memory["measured_peak_bytes"] <= most, memory["measured_peak_bytes"])
        if ON_GPU:
            # What the driver says: the libraries' own besides ours. Between ranks NCCL has buffers too.
            self.assertGreaterEqual(memory["device_in_use_bytes"], least)
            if ranks is None:
                self.assertLessEqual(memory["device_in_use_bytes"], most + CONTEXT_BYTES)
        return planned

    def check_planned_peaks(self, changes, ranks=None):
        """As assert_planned_peak, and that these keys save memory."""
        plain = self.assert_planned_peak({}, ranks)
        self.run_dir = self.folder / "changed"
        saved = self.assert_planned_peak(changes, ranks)
        # On a CPU what is offloaded stays in the same memory.
        self.assertTrue(saved < 0.95 * plain or not ON_GPU, f"{plain} -> {saved}")

    def check_bench_step(self, ranks=None):
        path = self.write_config({**ORDERED, "reduce.slots": 2})
        args = ["bench", "step", "--config", path, "--steps", "3", "--warmup", "1"]
        line = self.assert_ok(k25_testing.run(args, ranks)).stdout.splitlines()[0]
        cells = dict(re.findall(r"(\S+)=(\S+)", line))
        self.assertEqual((cells["ranks"], cells["tokens"]), (str(ranks or 1), str(24 * 32)))
        for key in ("min_ms", "median_ms", "max_ms", "tok/s", "gemm_ceiling_gflop/s"):
            self.assertGreater(float(cells[key]), 0, key)
        self.assertAlmostEqual(float(cells["mem_gib"]), float(cells["planned_gib"]), delta=0.0011)

    def check_bench_comm(self, ranks):
        result = self.assert_ok(k25_testing.run(
            ["bench", "comm", "--device", DEVICE, "--min-bytes", "4096", "--max-bytes", "1048576"], ranks))
        self.assertRegex(result.stdout, "^1 rank on " if ranks == 1 else f"^{ranks} ranks on ")
        self.assertEqual("on cpu;" in result.stdout, not ON_GPU)
        table = [line.split() for line in result.stdout.splitlines()[3:]]
        sizes = {op: [row[1] for row in table if row[0] == op] for op in {row[0] for row in table}}
        every = [str(4**n) for n in range(6, 11)]
        self.assertEqual(sizes, {"all_gather": every, "all_to_all": every, "reduce_scatter": every,
                                 "broadcast": every, "all_reduce_small": every[:3], "barrier": ["-"]})
        for op, _, micro, gb, *_ in table:
            self.assertGreater(float(micro), 0, op)
            if ranks > 1 and op != "barrier":
                self.assertGreater(float(gb), 0, op)
