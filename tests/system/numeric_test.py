"""Loss, gradients, clipping and the numeric policy, seen through whole runs."""
import json
import unittest

import k25_testing as kt

# The loss is a sum in units of 2^-24 nats over the global batch, the norm one of float gradients.
SAME = 1e-6


def unequal():
    """Windows of 32 tokens with anything from no label token to 31 of them."""
    lines = [kt.dialogue(*((60, 2) if i % 3 else (2, 60)), 10 * i) for i in range(40)]
    return kt.corpus({"talk": {"talk.jsonl": "\n".join(lines) + "\n"}})


class NumericTest(kt.K25Test):
    def records(self, name, changes=None, ranks=1, manifest=None, code=0):
        run_dir = self.folder / name
        base = {"data.validation": None, "log.tensorboard": False}
        self.last = self.train({**base, **(changes or {})}, ranks, manifest=manifest, run_dir=run_dir)
        self.assertEqual(self.last.code, code, str(self.last))
        return kt.steps(run_dir)

    def hash(self, name):
        return kt.state_hash(self.folder / name)

    def assert_same_step(self, a, b, limit=SAME):
        for key in ("loss", "gnorm"):
            self.assertAlmostEqual(a[key] / b[key], 1.0, delta=limit, msg=f"{key} of step {a['step']}")
        self.assertEqual(a["tokens"], b["tokens"])
        self.assertEqual(a["samples"], b["samples"])


class LossTest(NumericTest):
    def test_micro_batch_and_accumulation_splits_agree(self):  # A24
        manifest = unequal()
        runs = [self.records(f"m{micro}", {"train.micro_batch": micro, "train.steps": 2}, manifest=manifest)
                for micro in (8, 4, 1)]
        for other in runs[1:]:
            self.assert_same_step(runs[0][0], other[0])
            self.assert_same_step(runs[0][1], other[1], 1e-4)  # after one update of Adam, which signs gradients

    def test_ranks_agree(self):  # A25
        manifest = unequal()
        changes = {"train.batch": 12, "train.steps": 2}
        alone = self.records("w1", changes, manifest=manifest)
        self.assertLess(alone[0]["tokens"], 12 * 31, "the batch must have masked tokens")
        for ranks in (2, 3, 4):
            self.assert_same_step(self.records(f"w{ranks}", changes, ranks, manifest)[0], alone[0])

    def test_the_loss_is_the_mean_over_all_label_tokens(self):  # A24, A25
        manifest = unequal()
        whole = self.records("whole", {"train.batch": 2, "train.micro_batch": 1, "train.steps": 12, "optim.lr": 0},
                             2, manifest)
        single = self.records("single", {"train.batch": 1, "train.micro_batch": 1, "train.steps": 24, "optim.lr": 0},
                              1, manifest)
        told_apart = 0
        for i, step in enumerate(whole):
            parts = single[2 * i:2 * i + 2]
            self.assertEqual(step["samples"], parts[0]["samples"] + parts[1]["samples"])
            tokens = [p["tokens"] for p in parts]
            self.assertEqual(step["tokens"], sum(tokens))
            if sum(tokens) == 0:
                continue
            mean = sum(p.get("loss", 0.0) * p["tokens"] for p in parts) / sum(tokens)
            self.assertAlmostEqual(step["loss"], mean, delta=SAME)
            if all(tokens):
                wrong = (parts[0]["loss"] + parts[1]["loss"]) / 2
                told_apart += abs(wrong - mean) > 1e-4
        self.assertGreater(told_apart, 0, "the fixture must tell a mean of means from the mean")

    def test_a_rank_without_labels_and_a_batch_without_labels(self):  # A26
        manifest = unequal()
        per_sample = [s["tokens"] for s in self.records(
            "single", {"train.batch": 1, "train.micro_batch": 1, "train.steps": 60}, manifest=manifest)]
        pairs = list(zip(per_sample[0::2], per_sample[1::2]))
        lonely = next(i for i, (a, b) in enumerate(pairs) if (a == 0) != (b == 0))
        void = next(i for i, (a, b) in enumerate(pairs) if i > 0 and a == 0 and b == 0)
        last = max(lonely, void) + 2
        changes = {"train.batch": 2, "train.micro_batch": 1, "optim.weight_decay": 0.5, "train.steps": last,
                   "optim.schedule": {"kind": "constant", "warmup": 1000}}
        steps = self.records("pair", changes, 2, manifest)
        self.assertIn("loss", steps[lonely])
        self.assertGreater(steps[lonely]["gnorm"], 0)
        self.assertEqual(steps[lonely]["empty_now"], 0)
        self.assertGreaterEqual(steps[lonely]["loss_max"], steps[lonely]["loss"])
        self.assertNotIn("loss", steps[void])
        self.assertNotIn("gnorm", steps[void])
        self.assertEqual((steps[void]["empty_now"], steps[void]["tokens"]), (1, 0))
        self.assertEqual(steps[-1]["empty"], sum((a, b) == (0, 0) for a, b in pairs[:last]))
        self.assertEqual(steps[void + 1]["lr"], steps[void]["lr"], "the schedule stands still")
        line = next(l for l in self.last.stdout.splitlines() if l.startswith(f"step={void + 1}/"))
        self.assertIn(" loss=n/a loss_max=n/a gnorm=n/a ", line)
        self.records("before", {**changes, "train.steps": void}, 2, manifest)
        self.records("after", {**changes, "train.steps": void + 1}, 2, manifest)
        self.assertEqual(self.hash("before"), self.hash("after"), "nothing may move without a label")

    def test_the_maximum_is_not_below_the_mean(self):  # A29
        differ = 0
        for step in self.records("run", {"train.batch": 6, "train.steps": 12}, 3, unequal()):
            if "loss" in step:
                self.assertGreaterEqual(step["loss_max"], step["loss"])
                differ += step["loss_max"] > step["loss"]
        self.assertGreater(differ, 0)


class PolicyTest(NumericTest):
    INJECT = {"tensor": "layers.1.ffn.down", "index": 3}

    def test_one_bad_element_skips_the_step_on_every_rank(self):  # A27
        for value in ("nan", "inf"):
            changes = {"debug.inject": {**self.INJECT, "step": 3, "value": value}, "train.steps": 5}
            steps = self.records(value, changes, 2)
            self.assertEqual([s["skipped_now"] for s in steps], [0, 0, 1, 0, 0])
            self.assertEqual([s["skipped"] for s in steps], [0, 0, 1, 1, 1])
            self.assertEqual([s["nan"] for s in steps], [0, 0, 1, 1, 1])
            self.assertNotIn("gnorm", steps[2])
            self.assertEqual(len(self.last.warnings), 1, str(self.last))
            self.assertRegex(self.last.warnings[0], r"step 3: .*layers\.1\.ffn\.down\[3\].* step skipped")
            self.records(value + "2", {**changes, "train.steps": 2}, 2)
            self.records(value + "3", {**changes, "train.steps": 3}, 2)
            self.assertEqual(self.hash(value + "2"), self.hash(value + "3"))
            self.assertNotEqual(self.hash(value), self.hash(value + "3"))

    def test_a_tensor_that_does_not_overflow_is_no_fault(self):
        steps = self.records("run", {"debug.inject": {**self.INJECT, "step": 2, "value": 1.5}, "train.steps": 3})
        self.assertEqual(steps[-1]["skipped"], 0)

    def test_skips_are_told_and_counted_and_nothing_advances(self):  # A28
        changes = {"debug.inject": {**self.INJECT, "step": 0, "value": "nan"}, "train.steps": 50,
                   "optim.schedule": {"kind": "cosine", "warmup": 10}, "checkpoint.every": 1}
        steps = self.records("run", changes, 2, code=5)
        self.assert_error(self.last, 5, "5 steps in a row were skipped, the limit is 5", "the last checkpoint stands")
        self.assertEqual([s["skipped"] for s in steps], [1, 2, 3, 4, 5])
        self.assertEqual({s["lr"] for s in steps}, {steps[0]["lr"]})
        self.assertEqual([s["total_tokens"] for s in steps], [0] * 5)
        self.assertEqual(len(self.last.warnings), 5, str(self.last))
        for number, line in enumerate(self.last.stdout.splitlines()[-5:], 1):
            self.assertIn(f" skipped={number} nan={number} ", line)
        shown = self.assert_ok(kt.run(["inspect", self.folder / "run"]))
        self.assertIn("skipped 4", shown.stdout)

    def test_on_nan_stop_stops_at_once(self):  # A28
        changes = {"debug.inject": {**self.INJECT, "step": 2, "value": "nan"}, "numeric": {"on_nan": "stop"}}
        self.assertEqual(len(self.records("run", changes, 2, code=5)), 2)
        self.assert_error(self.last, 5, "step 2:", "on_nan")

    def test_an_applied_step_ends_the_row(self):
        changes = {"debug.inject": {**self.INJECT, "step": 2, "value": "nan"}, "train.steps": 4,
                   "numeric": {"max_consecutive_skips": 2}}
        self.assertEqual(self.records("run", changes)[-1]["skipped"], 1)


class ClipTest(NumericTest):
    def test_clipping_uses_the_global_norm(self):  # A31
        changes = {"reduce.slots": 4, "train.steps": 3}
        free = self.records("free", changes)
        for ranks in (1, 2, 4):
            clipped = self.records(f"clip{ranks}", {**changes, "optim.clip": free[0]["gnorm"] / 10}, ranks)
            self.assertEqual(clipped[0]["gnorm"], free[0]["gnorm"], "the norm is that before clipping")
        self.assertEqual(self.hash("clip1"), self.hash("clip2"))
        self.assertEqual(self.hash("clip1"), self.hash("clip4"))
        self.assertNotEqual(self.hash("clip1"), self.hash("free"))

    def test_below_the_threshold_nothing_changes(self):  # A31
        free = self.records("free")
        limit = max(s["gnorm"] for s in free)
        self.records("clipped", {"optim.clip": limit})
        self.assertEqual(self.hash("clipped"), self.hash("free"))

    def test_a_norm_of_0_is_no_fault(self):  # A31
        steps = self.records("run", {"optim.clip": 1.0, "optim.weight_decay": 0.5, "optim.freeze": ["*"]}, 2)
        self.assertEqual([s["gnorm"] for s in steps], [0.0] * 4)
        self.assertEqual(steps[-1]["skipped"], 0)
        self.records("still", {"optim.lr": 0})
        self.assertEqual([w.split(": ")[3] for w in self.last.warnings], ["has no effect because every update is "
                                                                          "multiplied by 0"], self.last)


class FreezeTest(NumericTest):
    def test_frozen_parameters_stand_still_at_every_rank_count(self):
        patterns = {"embedding": ["embedding"], "layer": ["layers.0.*"], "norms": ["*norm"], "head": ["head"]}
        for name, freeze in patterns.items():
            changes = {"optim.freeze": freeze, "reduce.slots": 4, "train.steps": 2}
            for ranks in (1, 2):
                self.records(f"{name}{ranks}", changes, ranks)
            self.assertEqual(self.hash(f"{name}1"), self.hash(f"{name}2"))
        self.assertEqual(len({self.hash(f"{name}1") for name in patterns}), len(patterns))


class PrecisionTest(NumericTest):
    def test_bf16_trains_beside_fp32(self):
        half = self.records("bf16", {"train.precision": "bf16"}, 2)
        full = self.records("fp32", {}, 2)
        self.assertNotEqual(half[0]["loss"], full[0]["loss"])
        for a, b in zip(half, full):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=0.02)


if __name__ == "__main__":
    unittest.main()
