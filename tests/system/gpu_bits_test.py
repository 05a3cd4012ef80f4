"""Training on one GPU: near the CPU's losses, and the same bits from run to run, also with state offloaded."""

import json
import unittest

from device_checks import BitChecks, losses
from gpu_testing import BF16, ON_GPU, GpuTest, long_sequences
from k25_testing import state_hash
from train_testing import ORDERED

# fp32: products and sums in another order. bf16: eight bits; our own kernels and cuDNN's round in other places.
NEAR = {"fp32": 1e-4, "bf16": 1e-2}


# Kimi Linear's mixers in turn, on heads that the GPU takes.
KDA = {"model.pattern": ["kda/swiglu", "kda/swiglu", "gqa/swiglu"], "model.layers": 3, "model.kda.heads": 2,
       "model.kda.key_head_dim": 64, "model.kda.value_head_dim": 64, "model.kda.gate_rank": 16}


class BesideTheCpu(GpuTest):
    def check(self, precision):
        # One slot: gradients are formed in the shard, by a first product that is written and 11 that are added.
        for name, changes in (("short", {}), ("long", long_sequences()), ("alone", {"reduce.slots": 1})):
            changes = {**changes, "train.steps": 40, "optim.lr": 1e-3}
            cpu = self.ordered({**changes, "train.device": "cpu"}, name=f"{name}-cpu")
            gpu = self.ordered({**changes, "train.precision": precision}, name=f"{name}-gpu")
            self.assert_near(gpu, cpu, NEAR[precision])
            self.assertLess(losses(gpu)[-1], 0.9 * losses(gpu)[0])

    def test_losses_of_delta_attention(self):
        for name, changes in (("short", {}), ("long", {**long_sequences(), "model.hidden": 64})):
            changes = {**changes, **KDA, "train.steps": 20, "optim.lr": 1e-3}
            cpu = self.ordered({**changes, "train.device": "cpu"}, name=f"{name}-cpu")
            for precision, limit in NEAR.items():
                gpu = self.ordered({**changes, "train.precision": precision}, name=f"{name}-{precision}")
                self.assert_near(gpu, cpu, limit)

    def test_losses_in_fp32(self):
        self.check("fp32")

    def test_losses_in_bf16(self):
        self.check("bf16")

    def test_a_checkpoint_of_the_gpu_goes_on_on_the_cpu(self):
        straight = self.ordered({"train.steps": 24}, name="straight")
        self.ordered({"train.steps": 20}, name="moved")
        result = self.assert_ok(self.train({**ORDERED, "train.steps": 24, "train.device": "cpu"},
                                           run_dir=self.folder / "moved"))
        self.assertIn("at step 20", result.stdout)
        self.assert_near(self.folder / "moved", straight, NEAR["fp32"])
        if ON_GPU:
            self.assertEqual(len([w for w in result.warnings if "not used, and chosen anew" in w]), 1, str(result))
            self.assertRegex(result.stderr, r"differs from the checkpoint: train\.device cuda -> cpu, machine \(gpu=.*\) "
                                            r"-> \(cpu=")


class Bits(GpuTest, BitChecks):
    def test_two_runs_in_fp32(self):
        self.check_same_bits("fp32", (None, None))

    def test_two_runs_in_bf16(self):
        self.check_same_bits("bf16", (None, None))

    def test_two_runs_of_delta_attention(self):
        for precision in NEAR:
            one, two = (self.ordered({**long_sequences(), **KDA, "train.steps": 8, "train.precision": precision},
                                     name=f"{precision}-{i}") for i in range(2))
            self.assertEqual((losses(one), state_hash(one)), (losses(two), state_hash(two)))

    def test_recompute_of_delta_attention(self):
        self.check_recompute({**long_sequences(), **KDA, **BF16, "train.steps": 4}, None)

    def check_halves(self, precision):
        changes = {**long_sequences(), "train.precision": precision}
        straight, halves = self.straight_and_halves(changes, None, 20)
        # The kernels that were chosen are kept, and the resumed run has the straight run's.
        plans = [json.loads((folder / "plans.json").read_text()) for folder in (straight, halves)]
        self.assertEqual(plans[0], plans[1])
        self.assertEqual(bool(plans[0]["gemm"]), ON_GPU)
        with_cudnn = ON_GPU and plans[0]["gpu"]["cudnn"] != 0
        self.assertEqual(bool(plans[0]["attention"]), with_cudnn and precision == "bf16")
        again = self.assert_ok(self.train({**ORDERED, **changes, "train.steps": 21}, run_dir=halves))
        self.assertNotIn("plans.json", again.stderr)
        self.assertNotIn("differs from the checkpoint: machine", again.stderr)

    def test_stopped_at_half_in_fp32(self):
        self.check_halves("fp32")

    def test_stopped_at_half_in_bf16(self):
        self.check_halves("bf16")

    def test_where_parameters_are_rounded(self):
        self.check_rounding(None)

    def test_offload_with_one_slot(self):
        self.check_offload({**BF16, "reduce.slots": 1}, None)

    def test_offload_in_fp32(self):
        self.check_offload({}, None)

    def test_offload_in_bf16(self):
        self.check_offload(BF16, None)

    def test_recompute_in_fp32(self):
        self.check_recompute({"train.steps": 4}, None)

    def test_recompute_in_bf16(self):
        self.check_recompute({**long_sequences(), **BF16, "train.steps": 4}, None)


if __name__ == "__main__":
    unittest.main()
