"""The bits of a run do not depend on the rank count, the sharding options or the number of threads."""

import re
import unittest

import k25_testing
from device_checks import BitChecks
from k25_testing import state_hash
from train_testing import ORDERED, TrainTest


def longest_equal_run(a, b):
    """Bytes of the longest stretch that is the same in both, zeros aside, in steps of 64."""
    longest = run = 0
    for i in range(0, min(len(a), len(b)), 64):
        same = a[i:i + 64] == b[i:i + 64] and a[i:i + 64] != bytes(64)
        run = run + 64 if same else 0
        longest = max(longest, run)
    return longest


class RankCount(TrainTest):
    def check(self, changes, ranks=(1, 2, 3, 4)):
        hashes = {}
        for count in ranks:
            folder = self.ordered(changes, count, name=f"ranks-{count}")
            hashes[count] = state_hash(folder)
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_fp32(self):
        self.check({})

    def test_bf16(self):
        self.check({"train.precision": "bf16"})

    def test_tied_embeddings(self):
        self.check({"model.tie_embeddings": True}, (1, 2, 4))

    def test_alone_equals_one_rank_of_mpirun(self):
        self.check({"train.steps": 3}, (None, 1))

    def test_evaluation(self):
        losses = {}
        for ranks in (1, 2, 3):
            folder = self.ordered({"train.steps": 2, "eval.every": 1, "data.validation.fraction": 0.3},
                                  ranks, name=f"eval-{ranks}")
            losses[ranks] = [m["val_loss"] for m in k25_testing.metrics(folder)
                             if m.get("event") == "eval"]
        self.assertEqual(len(losses[1]), 3)
        self.assertEqual(losses[1], losses[2])
        self.assertEqual(losses[1], losses[3])

    def test_replicas(self):
        a = self.ordered({"train.steps": 6}, 4, name="sharded")
        b = self.ordered({"train.steps": 6, "mesh.replicate": 2, "mesh.shard": 2}, 4, name="hybrid")
        c = self.ordered({"train.steps": 6, "mesh.replicate": 4, "mesh.shard": 1}, 4, name="copies")
        self.assertEqual({state_hash(a)}, {state_hash(b), state_hash(c)})

    def test_tensors_smaller_than_the_rank_count(self):
        small = {"model.hidden": 4, "model.heads": 1, "model.kv_heads": 1, "model.layers": 3,
                 "train.batch": 28, "train.micro_batch": 1, "reduce.slots": 28, "train.steps": 3}
        a = self.ordered(small, 7, name="seven")
        b = self.ordered(small, 1, name="one")
        self.assertEqual(state_hash(a), state_hash(b))

    def test_small_messages(self):
        a = self.ordered({"train.steps": 2}, 3, name="whole")
        b = self.ordered({"train.steps": 2, "comm.max_chunk": 1024, "comm.check": True}, 3, name="cut")
        self.assertEqual(state_hash(a), state_hash(b))

    def test_without_slots_the_first_step_agrees(self):
        first = {}
        for ranks in (1, 2, 3, 4):
            folder = self.ordered({"reduce.slots": None, "train.steps": 1}, ranks, name=f"r{ranks}")
            first[ranks] = k25_testing.steps(folder)[0]
        for record in first.values():
            self.assertEqual(record["samples"], first[1]["samples"])
            self.assertEqual(record["tokens"], first[1]["tokens"])
            self.assertAlmostEqual(record["loss"], first[1]["loss"], delta=1e-6 * first[1]["loss"])
            self.assertAlmostEqual(record["gnorm"], first[1]["gnorm"], delta=1e-6 * first[1]["gnorm"])

    def test_accumulation_splits_agree_at_the_first_step(self):
        # Prompts without labels make the label counts unequal.
        lines = "".join(k25_testing.dialogue(4 + 7 * i % 30, 3 + 5 * i % 23, i) + "\n"
                        for i in range(60))
        manifest = k25_testing.corpus({"chat": {"talk.jsonl": lines}})
        first = []
        for micro in (8, 4, 1):
            folder = self.folder / f"m{micro}"
            self.assert_ok(self.train({"train.batch": 8, "train.micro_batch": micro, "train.steps": 1,
                                       "data.validation": None}, manifest=manifest, run_dir=folder))
            first.append(k25_testing.steps(folder)[0])
        for record in first[1:]:
            self.assertEqual(record["tokens"], first[0]["tokens"])
            self.assertAlmostEqual(record["loss"], first[0]["loss"], delta=1e-6 * first[0]["loss"])
            self.assertAlmostEqual(record["gnorm"], first[0]["gnorm"], delta=1e-6 * first[0]["gnorm"])


class Options(BitChecks):
    def test_sharding_options_change_no_bit(self):
        hashes = {}
        for reshard in ("forward", "micro_batch", "step"):
            for reduce in ("micro_batch", "step"):
                for prefetch in (0, 1):
                    name = f"{reshard}-{reduce}-{prefetch}"
                    folder = self.ordered({"train.steps": 3, "zero.reshard_after": reshard,
                                           "zero.reduce_after": reduce, "zero.prefetch": prefetch},
                                          2, name=name)
                    hashes[name] = state_hash(folder)
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_where_parameters_are_rounded_changes_no_bit(self):
        self.check_rounding(2)

    def offload_changes_no_bit(self, precision):  # A12, A31, C22
        plain = self.check_offload({"train.precision": precision}, 2)
        moved = self.ordered({"train.steps": 6, "optim.clip": 0.7, "train.precision": precision,
                              "offload.optimizer": "host"}, 1, name="one")
        self.assertEqual(state_hash(moved), state_hash(plain))

    def test_offload_changes_no_bit_in_fp32(self):
        self.offload_changes_no_bit("fp32")

    def test_offload_changes_no_bit_in_bf16(self):
        self.offload_changes_no_bit("bf16")

    def test_offloaded_bytes_are_planned(self):
        for optimizer, params in (("host", "device"), ("host", "host"), ("device", "host")):
            result = self.train({**ORDERED, "train.steps": 2, "offload.optimizer": optimizer,
                                 "offload.params": params}, 2, run_dir=self.folder / f"{optimizer}-{params}")
            text = self.assert_ok(result).stdout
            planned, allocated = re.search(r"memory planned (\d+) bytes a rank, allocated (\d+)", text).groups()
            self.assertEqual(planned, allocated)
            peaked = re.search(r"peaked at (\d+) to (\d+) bytes a rank, planned (\d+)", text).groups()
            self.assertEqual(set(peaked), {planned})

    def test_recompute_changes_no_bit(self):  # A33
        self.check_recompute({"train.steps": 4}, 2)

    def test_library_reduction_agrees_at_the_first_step(self):
        a = self.ordered({"train.steps": 1}, 2, name="ordered")
        for reduce in ("micro_batch", "step"):
            b = self.ordered({"train.steps": 1, "reduce.mode": "library", "zero.reduce_after": reduce},
                             2, name=f"library-{reduce}")
            one, other = k25_testing.steps(a)[0], k25_testing.steps(b)[0]
            self.assertAlmostEqual(one["gnorm"], other["gnorm"], delta=1e-6 * one["gnorm"])
            self.assertEqual(one["loss"], other["loss"])

    def test_two_runs_and_two_threads_give_the_same_bits(self):
        a = self.ordered({"train.steps": 4}, 1, name="a")
        b = self.ordered({"train.steps": 4}, 1, name="b")
        c = self.ordered({"train.steps": 4, "run.cpu_threads": 2}, 1, name="threads")
        self.assertEqual({state_hash(a)}, {state_hash(b), state_hash(c)})

    def test_frozen_parameters_stay(self):
        table = 300 * 16 * 4  # bytes of the embedding
        longest = {}
        for name, patterns in (("trained", []), ("frozen", ["embedding"])):
            folder = self.ordered({"train.steps": 3, "checkpoint.every": 1, "checkpoint.keep": 3,
                                   "optim.freeze": patterns}, 1, name=name)
            longest[name] = longest_equal_run(self.shard(1, 0, folder).read_bytes(),
                                              self.shard(3, 0, folder).read_bytes())
        self.assertGreaterEqual(longest["frozen"], table)
        self.assertLess(longest["trained"], table // 2)

    def test_a_wholly_frozen_model_stays(self):
        folder = self.ordered({"train.steps": 2, "checkpoint.every": 1, "optim.freeze": ["*"]}, 2)
        self.assertEqual(state_hash(folder, "step:1"), state_hash(folder, "step:2"))

    def test_every_part_can_be_frozen(self):
        for tied in (False, True):
            for n, patterns in enumerate((["layers.0.*"], ["*norm*"], ["*qkv", "*down"],
                                          ["embedding"] if tied else ["head"])):
                changes = {"train.steps": 2, "optim.freeze": patterns, "model.tie_embeddings": tied}
                a = self.ordered(changes, 1, name=f"one-{tied}-{n}")
                b = self.ordered(changes, 3, name=f"three-{tied}-{n}")
                self.assertEqual(state_hash(a), state_hash(b), patterns)

    def test_memory_is_as_planned_on_every_rank(self):
        for ranks, changes in ((1, {}), (2, {"train.precision": "bf16"}), (4, {}),
                               (3, {"zero.reshard_after": "forward", "model.tie_embeddings": True}),
                               (4, {"mesh.replicate": 2, "mesh.shard": 2})):
            folder = self.folder / f"memory-{ranks}-{len(changes)}"
            result = self.train({**ORDERED, "train.steps": 2, "checkpoint.every": 1, **changes}, ranks,
                                run_dir=folder)
            self.assert_ok(result)
            found = re.search(r"peaked at (\d+) to (\d+) bytes a rank, planned (\d+)", result.stdout)
            self.assertIsNotNone(found, str(result))
            least, most, planned = (int(n) for n in found.groups())
            self.assertGreaterEqual(least, 0.95 * planned, str(result))
            self.assertLessEqual(most, 1.05 * planned, str(result))


if __name__ == "__main__":
    unittest.main()
