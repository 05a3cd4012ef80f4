"""Models with kda and mla mixers and moe feed-forwards: bits, resuming, the correction bias, what is refused."""

import pathlib
import re
import unittest

import k25_testing
from device_checks import BitChecks
from k25_testing import state_hash
from train_testing import ORDERED

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS = {"model.layers": 4, "model.pattern": ["kda/moe", "kda/moe", "kda/moe", "gqa/moe"], "model.kda.heads": 2,
          "model.kda.key_head_dim": 4, "model.kda.value_head_dim": 6, "model.kda.gate_rank": 3, "model.moe.experts": 5,
          "model.moe.per_token": 2, "model.moe.ffn": 12, "model.moe.shared_experts": 1,
          "model.moe.first_dense_layers": 1, "model.moe.bias_rate": 0.01, "train.device": "cpu"}
LATENT = {"model.moe.experts": 6, "model.moe.shared_experts": 0, "model.moe.latent": 8, "model.moe.renormalize": False,
          "model.moe.groups": 3, "model.moe.top_groups": 2, "model.kda.gate": "lower_bound", "model.kda.beta": 2}

MLA = {"model.layers": 3, "model.pattern": ["mla/swiglu", "kda/swiglu", "mla/swiglu"], "model.kda.heads": 2, "model.kda.key_head_dim": 4,
       "model.mla.kv_rank": 12, "model.mla.nope_head_dim": 6, "model.mla.value_head_dim": 5, "train.device": "cpu"}
MLA_ROPE = {**MLA, "model.mla.rope_head_dim": 4, "model.mla.q_rank": 10}


class LayerBits(BitChecks):
    def check_ranks(self, changes):
        hashes = {}
        for ranks in (1, 2, 3, 4):
            folder = self.ordered({**LAYERS, "train.steps": 4, **changes}, ranks, name=f"ranks-{ranks}")
            hashes[ranks] = state_hash(folder)
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_any_rank_count_fp32(self):
        self.check_ranks({})

    def test_any_rank_count_bf16_latent(self):
        self.check_ranks({"train.precision": "bf16", **LATENT})

    def check_mla_ranks(self, changes, last):
        hashes = [state_hash(self.ordered({**changes, "train.steps": 3}, ranks, name=f"ranks-{ranks}")) for ranks in (1, 3, last)]
        self.assertEqual(len(set(hashes)), 1, hashes)

    def test_any_rank_count_mla(self):
        self.check_mla_ranks(MLA, 2)

    def test_any_rank_count_mla_rope_bf16(self):
        self.check_mla_ranks({**MLA_ROPE, "train.precision": "bf16"}, 4)

    def test_memory_choices_and_threads_of_mla(self):
        plain = self.ordered({**MLA_ROPE, "train.steps": 2}, 2, name="plain")
        for i, other in enumerate(({"recompute.layers": "all", "recompute.check": True}, {"recompute.cheap": True},
                                   {"run.cpu_threads": 2})):
            again = self.ordered({**MLA_ROPE, "train.steps": 2, **other}, 2, name=f"other-{i}")
            self.assertEqual(state_hash(again), state_hash(plain), other)

    def test_resume_mla(self):
        self.straight_and_halves(MLA_ROPE, 2, steps=4)

    def test_resume(self):
        self.straight_and_halves(LAYERS, 2)

    def test_from_four_ranks_to_one(self):
        straight = self.ordered({**LAYERS, "train.steps": 6}, 1, name="straight")
        for ranks, steps in ((4, 2), (3, 4), (1, 6)):
            self.ordered({**LAYERS, "train.steps": steps}, ranks, name="parts")
        self.assertEqual(state_hash(straight), state_hash(self.folder / "parts"))

    def test_memory_choices_and_threads(self):
        steps = {**LAYERS, "train.steps": 3}
        plain = self.ordered(steps, 2, name="plain")
        for i, other in enumerate(({"recompute.layers": "all", "recompute.check": True}, {"recompute.cheap": True},
                                   {"offload.optimizer": "host", "offload.params": "host"}, {"run.cpu_threads": 2},
                                   {"mesh.replicate": 2, "mesh.shard": 1},
                                   {"zero.reshard_after": "forward", "zero.prefetch": 0})):
            again = self.ordered({**steps, **other}, 2, name=f"other-{i}")
            self.assertEqual(state_hash(again), state_hash(plain), other)

    def test_planned_bytes_are_what_a_run_allocates(self):
        self.check_bytes(LAYERS)

    def test_planned_bytes_of_mla(self):
        self.check_bytes({**MLA_ROPE, "recompute.cheap": True})

    def check_bytes(self, changes):
        shown = self.train({**ORDERED, **changes, "train.steps": 2}, 2, run_dir=self.folder / "run")
        planned, allocated = re.search(r"memory planned (\d+) bytes a rank, allocated (\d+)",
                                       self.assert_ok(shown).stdout).groups()
        self.assertEqual(planned, allocated)
        self.assertRegex(shown.stdout, rf"peaked at {planned} to {planned} bytes a rank, planned {planned}")

    def test_evaluation_counts_no_load(self):
        data = {**LAYERS, "train.steps": 4, "data.validation.fraction": 0.3}
        plain = self.ordered(data, 2, name="plain")
        self.assertEqual(state_hash(self.ordered({**data, "eval.every": 1}, 2, name="eval")), state_hash(plain))


class CorrectionBias(BitChecks):
    """With a learning rate of 0 nothing but the bias can change the parameters."""

    def digest(self, name, steps, changes):
        still = {"optim.lr": 0, "optim.weight_decay": 0, "model.moe.bias_rate": 0.25}
        return state_hash(self.ordered({**LAYERS, **still, "train.steps": steps, **changes}, 2, name=name))

    def losses(self, name):
        return [s["loss"] for s in k25_testing.steps(self.folder / name)]

    def test_it_moves_by_its_rate_and_changes_the_choice(self):
        self.digest("moved", 3, {})
        self.digest("still", 3, {"model.moe.bias_rate": 0})
        self.assertEqual(self.losses("moved")[0], self.losses("still")[0])
        self.assertNotEqual(self.losses("moved")[1], self.losses("still")[1])

    def test_a_skipped_step_does_not_move_it(self):
        spoilt = {"debug.inject.step": 1, "debug.inject.tensor": "embedding", "debug.inject.value": "nan"}
        skipped = self.digest("skipped", 1, spoilt)
        self.assertEqual(skipped, self.digest("still", 1, {**spoilt, "model.moe.bias_rate": 0}))
        self.assertNotEqual(skipped, self.digest("moved", 1, {}))


class Refused(k25_testing.K25Test):
    def test_another_function_of_the_same_weights(self):
        folder = self.folder / "run"
        self.assert_ok(self.train({**LAYERS, "train.steps": 1}, run_dir=folder))
        for key, was, now in (("model.kda.beta", 1, 2), ("model.moe.per_token", 2, 3),
                              ("model.moe.scaling_factor", 1, 2.5), ("model.kda.gate", "softplus", "lower_bound")):
            self.assert_error(self.train({**LAYERS, "train.steps": 2, key: now}, run_dir=folder), 4,
                              f"{key} is {was} there and {now} in the config")

    def test_another_latent_attention(self):
        folder = self.folder / "run"
        self.assert_ok(self.train({**MLA_ROPE, "train.steps": 1}, run_dir=folder))
        for key, was, now in (("model.mla.positions", "rope", "none"), ("model.mla.kv_rank", 12, 11)):
            self.assert_error(self.train({**MLA_ROPE, "train.steps": 2, key: now}, run_dir=folder), 4,
                              f"{key} is {was} there and {now} in the config")

    def test_gpus(self):
        def plan(changes):
            path = self.write_config({**LAYERS, **changes}, manifest="corpus/manifest.json")
            return path, path.read_text().splitlines(), k25_testing.run(["plan", path, "--gpus", 2])

        path, lines, shown = plan({})
        at = 1 + lines.index('  pattern: ["kda/moe", "kda/moe", "kda/moe", "gqa/moe"]')
        self.assert_error(shown, 2, f"{path}:{at}:12: model.pattern: layer 2 has moe, which runs on the CPU only so far; "
                                    "set train.device: cpu")
        path, lines, shown = plan({"model.pattern": ["gqa/swiglu", "mla/swiglu"], "model.mla.kv_rank": 8})
        at = 1 + lines.index('  pattern: ["gqa/swiglu", "mla/swiglu"]')
        self.assert_error(shown, 2, f"{path}:{at}:12: model.pattern: layer 2 has mla, which runs on the CPU only so far; "
                                    "set train.device: cpu")
        path, lines, shown = plan({"model.pattern": ["kda/swiglu"]})
        at, line = next((i, line) for i, line in enumerate(lines, 1) if "key_head_dim: 4" in line)
        self.assert_error(shown, 2, f"{path}:{at}:{line.index('4') + 1}: model.kda.key_head_dim: 4, and the heads of "
                                    "kda layers are 64 or 128 wide on a GPU")
        self.assert_ok(plan({"model.pattern": ["kda/swiglu"], "model.kda.key_head_dim": 64,
                             "model.kda.value_head_dim": 128})[2])


class TinyPreset(k25_testing.K25Test):
    def test_it_learns(self):
        manifest = k25_testing.corpus()
        path = ROOT / "configs" / "kimi-linear-tiny.yaml"
        small = {"run.dir": self.run_dir, "data.train": manifest, "data.validation.documents": "[]", "data.sequence": 64, "train.steps": 8,
                 "train.batch": 4, "train.micro_batch": 1, "eval.every": 0, "checkpoint.every": 0,
                 "optim.schedule.warmup": 2}
        result = k25_testing.run(["train", path, *(arg for key, value in small.items() for arg in ("--set", f"{key}={value}"))], 2)
        self.assert_ok(result)
        losses = [s["loss"] for s in k25_testing.steps(self.run_dir)]
        self.assertLess(losses[-1], losses[0] - 0.3)


if __name__ == "__main__":
    unittest.main()
