"""Two GPUs: one and two of them agree to the bit, ranks that are lost, and what both report."""

import unittest

import k25_testing
from device_checks import BitChecks, FaultChecks, WatchChecks
from gpu_testing import BF16, ON_GPU, GpuTest, long_sequences, visible_gpus
from k25_testing import state_hash
from train_testing import ORDERED


class PairTest(GpuTest):
    gpus = 2


class Bits(PairTest, BitChecks):
    def test_one_and_two_gpus_in_fp32(self):
        self.check_same_bits("fp32", (1, 2))

    def test_one_and_two_gpus_in_bf16(self):
        self.check_same_bits("bf16", (1, 2))

    def test_from_two_gpus_to_one(self):
        changes = {**long_sequences(), **BF16}
        straight = self.ordered({**changes, "train.steps": 20}, 1, name="straight")
        for ranks, steps in ((2, 10), (1, 20)):
            self.ordered({**changes, "train.steps": steps}, ranks, name="moved")
        self.assertEqual(state_hash(straight), state_hash(self.folder / "moved"))

    def test_stopped_at_half(self):
        self.straight_and_halves({**long_sequences(), **BF16}, 2, 20)

    def test_offload_in_fp32(self):
        self.check_offload({}, 2)

    def test_offload_in_bf16(self):
        self.check_offload(BF16, 2)

    def test_recompute_in_bf16(self):
        self.check_recompute({**long_sequences(), **BF16, "train.steps": 4}, 2)


class Devices(PairTest):
    def setUp(self):
        super().setUp()
        self.skip_on_cpu()
        self.first, self.second = visible_gpus()[:2]

    def train_with(self, *visible):
        """One rank for each value of CUDA_VISIBLE_DEVICES."""
        path = self.write_config({**ORDERED, "train.steps": 4})
        return self.run_unlike([(1, [], ["env", f"CUDA_VISIBLE_DEVICES={value}"], ["train", path])
                                for value in visible])

    def test_each_rank_may_see_its_own(self):
        self.assert_ok(self.train_with(self.first, self.second))
        both = self.ordered({"train.steps": 4}, 2, name="both")
        self.assertEqual(state_hash(self.run_dir), state_hash(both))

    def test_one_gpu_for_two_ranks(self):
        for visible, words in (((self.first, self.first), "has 1 GPU for 2 ranks"),
                               ((self.first, f"{self.first},{self.second}"), "both take GPU")):
            self.assert_error(self.train_with(*visible), 2, words, "CUDA_VISIBLE_DEVICES=")
            self.assertFalse(self.run_dir.exists())

    def test_one_rank_without(self):
        self.assert_error(self.train_with(self.first, ""), 2, "rank 1 on host", "sees no GPU")
        self.assertFalse(self.run_dir.exists())


class LostRanks(PairTest, FaultChecks):
    def test_a_killed_rank_ends_the_job_and_the_survivor_says_so(self):
        # What waits is a stream, not the host: nobody knows yet for whom.
        self.check_killed_rank(2, r"stopped by signal 15")

    def test_a_stopped_rank_is_found_by_the_watchdog(self):
        self.check_stopped_rank(2)


class NotFinite(PairTest, FaultChecks):
    def test_a_gradient_of_one_rank_makes_all_ranks_skip(self):
        # The first and the last of 4800 elements: in the shard, of whole 4096, of the first and of the second rank.
        for index, value in ((0, "nan"), (4799, "inf")):
            self.check_spoilt_gradient(2, "embedding", value, index)

    def test_a_loss_of_one_rank_makes_all_ranks_skip(self):
        self.check_spoilt_loss(2, "nan")

    def test_too_many_in_a_row_end_the_run(self):
        self.check_limit_of_skips(2)


class Watch(PairTest, WatchChecks):
    def test_a_slow_read_is_one_stall(self):
        self.check_slow_read(2, 1)

    def test_dump_by_ctl_and_by_signal(self):
        self.check_dump(2)

    def test_profile(self):
        self.assertEqual("device_ms_per_step" in self.check_profile(2)["step"], ON_GPU)

    def test_memory_has_a_category_for_every_byte(self):
        self.memory_report(2, {"device", "pinned"} if ON_GPU else {"host"})


class Tools(PairTest):
    def test_bench_comm(self):
        self.check_bench_comm(2)

    def test_bench_step(self):
        self.check_bench_step(2)

    def test_plan_with_recompute(self):
        self.check_planned_peaks({"recompute.layers": "all"}, 2)

    def test_plan_with_offload(self):
        self.check_planned_peaks({"offload.optimizer": "host", "offload.params": "host"}, 2)

    def test_doctor_reports_both(self):
        shown = self.assert_ok(k25_testing.run(["doctor", "--json", "--run-dir", self.folder], 2)).stdout
        found = k25_testing.parse_json(shown)["findings"]
        text = "\n".join(f["found"] for f in found if f["topic"] == "placement")
        for rank in (0, 1) if ON_GPU else ():
            self.assertRegex(text, rf"rank {rank}: GPU ")
        self.assertEqual(any(f["topic"] == "links" for f in found), ON_GPU, found)


if __name__ == "__main__":
    unittest.main()
