"""Ranks that are killed or stopped, and gradients that are not finite."""

import os
import re
import signal
import time
import unittest

import k25_testing
from device_checks import KILLED, FaultChecks
from k25_testing import state_hash
from train_testing import ORDERED, TrainTest, rank_pids

SAVES = {**ORDERED, "train.steps": 12, "checkpoint.every": 2, "checkpoint.keep": 2}


class KillPoints(TrainTest):
    def check(self, point, rank, step, resumed_at):
        straight = self.ordered(SAVES, 2, name="straight")
        killed = self.train({**SAVES, "debug.kill.rank": rank, "debug.kill.point": point,
                             "debug.kill.step": step}, 2)
        self.assertEqual(killed.code, KILLED, str(killed))
        self.assert_no_process_left()
        again = self.assert_ok(self.train(SAVES, 2))
        found = re.search(r"at step (\d+)", again.stdout)
        self.assertIn(int(found.group(1)), resumed_at, str(again))
        self.assertEqual(state_hash(self.run_dir), state_hash(straight))
        self.assertEqual(list((self.run_dir / "checkpoints").glob("*.tmp")), [])
        self.assertEqual((self.run_dir / "latest").read_text(), "step-000012\n")

    def test_after_shard_write(self):
        self.check("after_shard_write", 1, 6, [4])

    def test_after_shard_write_on_rank_0(self):
        self.check("after_shard_write", 0, 6, [4])

    def test_before_rename(self):
        self.check("before_rename", 0, 6, [4])

    def test_after_rename_before_latest(self):
        self.check("after_rename_before_latest", 0, 6, [6])

    def test_before_rename_on_another_rank(self):
        self.check("before_rename", 1, 6, [4, 6])

    def test_in_the_first_save(self):
        straight = self.ordered({**SAVES, "train.steps": 3}, 2, name="straight")
        killed = self.train({**SAVES, "debug.kill.rank": 0, "debug.kill.point": "before_rename",
                             "debug.kill.step": 2}, 2)
        self.assertEqual(killed.code, KILLED, str(killed))
        again = self.assert_ok(self.train({**SAVES, "train.steps": 3}, 2))
        self.assertNotIn("resumed", again.stdout)
        self.assertEqual(state_hash(self.run_dir), state_hash(straight))


class LostRanks(FaultChecks):
    def test_a_killed_rank_ends_the_job_and_the_survivors_say_so(self):
        self.check_killed_rank(3, r"collective #\d+ \(.+\).*rank 1 \(host .+, pid \d+\)")

    def test_a_stopped_rank_is_found_by_the_watchdog(self):
        self.check_stopped_rank(3)


class EarlyExit(TrainTest):
    """A rank that leaves on its own (A45): the job ends with its code, and nothing hangs."""

    def leave(self, prefix, args=(), ranks_before=2):
        path = self.write_config({"train.batch": 12, "train.steps": 100000})
        result = self.run_unlike([(ranks_before, [], [], ["train", path]),
                                  (1, [], prefix, ["train", path, *args])], timeout=30)
        self.assert_no_process_left()
        self.assertFalse((self.run_dir / "checkpoints").exists())
        return result

    def test_before_it_joined(self):
        self.assertEqual(self.leave(["sh", "-c", "exit 3", "--"]).code, 3)

    def test_by_a_signal_before_it_joined(self):
        self.assertEqual(self.leave(["sh", "-c", "kill -9 $$", "--"]).code, KILLED)

    def test_with_another_command_line(self):
        self.assertEqual(self.leave([], ["--nonsense"]).code, 2)

    def test_at_its_first_step(self):
        result = self.train({"train.batch": 12, "train.steps": 100000, "debug.kill.rank": 1,
                             "debug.kill.step": 1, "debug.kill.signal": int(signal.SIGTERM)}, 3, timeout=30)
        self.assertEqual(result.code, 128 + signal.SIGTERM, str(result))
        self.assert_no_process_left()


class Stopped(TrainTest):
    def test_a_stopped_job_names_the_rank_that_another_waits_for(self):
        process = self.start_train({"train.batch": 12, "train.steps": 100000,
                                    "debug.slow_read": {"rank": 1, "step": 7, "seconds": 30}}, 2)
        self.wait_for(lambda: self.steps_done() >= 6, process)
        slow = rank_pids(str(self.folder))[1]
        time.sleep(1 * k25_testing.slowness())  # rank 0 comes to its next collective
        os.kill(process.pid, signal.SIGTERM)
        result = k25_testing.finish(process, 15)
        self.assertIn(result.code, (128 + signal.SIGTERM, 1), str(result))
        self.assertRegex(result.stderr, r"(?m)^k25: rank 0: stopped by signal 15 while waiting in collective #\d+ \(.+\), "
                                        rf"missing rank 1 \(host .+, pid {slow}\)$")
        self.assert_no_process_left()


class NotFinite(FaultChecks):
    def test_a_skipped_step_changes_nothing_on_any_rank(self):
        for ranks, tensor, value, index in ((2, "layers.1.ffn.gate_up", "inf", 900),
                                            (2, "final_norm", "nan", 3), (1, "embedding", "-inf", 0)):
            self.check_spoilt_gradient(ranks, tensor, value, index)

    def test_too_many_in_a_row_end_the_run_with_the_last_checkpoint_intact(self):
        self.check_limit_of_skips(2)

    def test_a_loss_alone_that_is_not_finite_skips_the_step(self):  # A28
        for ranks, value in ((2, "nan"), (3, "inf"), (1, "-inf")):
            self.check_spoilt_loss(ranks, value)

    def test_losses_that_are_not_finite_end_the_run_at_the_limit(self):
        result = self.train({"train.steps": 20, "numeric.max_consecutive_skips": 3,
                             "debug.inject": {"step": 0, "tensor": "loss"}}, 2)
        self.assert_error(result, 5, "step 3", "the loss is not finite", "3 steps in a row")
        self.assertEqual([r["skipped"] for r in k25_testing.steps(self.run_dir)], [1, 2, 3])

    def test_on_nan_stop(self):
        result = self.train({"debug.inject.step": 2, "debug.inject.tensor": "embedding",
                             "numeric.on_nan": "stop"}, 2)
        self.assert_error(result, 5, "step 2", "on_nan is stop")

    def test_what_cannot_be_injected_is_said_at_the_start(self):
        for tensor, index, words in (("layers.9.none", 0, "is no parameter"),
                                     ("embedding", 10**9, "debug.inject.index"),
                                     ("loss", 10**6, "which has")):
            result = self.train({"debug.inject.step": 2, "debug.inject.tensor": tensor,
                                 "debug.inject.index": index}, 2)
            self.assert_error(result, 2, words)
            self.assertEqual(self.steps_done(), 0)


class EndOfData(TrainTest):
    def test_stop_when_exhausted_is_one_message(self):
        manifest = k25_testing.corpus({"law": {f"{i}.txt": k25_testing.words(60, i) for i in range(6)}})
        result = self.train({"data.on_exhausted": "stop", "data.validation": None, "train.steps": 99,
                             "checkpoint.every": 1}, 2, manifest)
        self.assert_error(result, 3, "is exhausted")
        self.assertEqual(self.saved_steps()[-1], self.steps_done())

    def test_the_end_of_the_data_saves_what_was_trained(self):
        manifest = k25_testing.corpus({"law": {f"{i}.txt": k25_testing.words(60, i) for i in range(6)}})
        result = self.train({"data.on_exhausted": "stop", "data.validation": None, "train.steps": 99,
                             "checkpoint.every": 0}, 2, manifest)
        self.assert_error(result, 3, "is exhausted")
        self.assertEqual(self.saved_steps(), [self.steps_done()])


if __name__ == "__main__":
    unittest.main()
