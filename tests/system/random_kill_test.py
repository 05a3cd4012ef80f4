"""Ranks killed at random moments, inside saves too: the run always goes on, to the same bits."""

import os
import random
import re
import signal
import time
import unittest

import k25_testing
from k25_testing import state_hash
from train_testing import ORDERED, TrainTest, rank_pids

KILLED = 128 + signal.SIGKILL


def launcher_hangs(result):
    """Whether a run hung in mpirun alone: Open MPI 4.1 may do so when a rank is killed while it connects to mpirun.
    No rank is left then; the killed one is a zombie that mpirun does not reap."""
    states = re.findall(r"(?m)^hangs: \d+ k25 (\S)", result.stderr)
    return result.code is None and "PMIX ERROR: UNREACHABLE" in result.stderr and set(states) <= {"Z"}


class RandomKills(TrainTest):
    KILLS = 20

    def kill_at_random(self, draw, span):
        """Starts the run, kills one rank after a random time or at a random point of a save. True if it came
        to that before the run was done."""
        changes = dict(self.changes)
        saved = max(self.saved_steps(), default=0)
        points = ("step", "after_shard_write", "before_rename", "after_rename_before_latest")
        by_point = draw.random() < 0.4
        if by_point:
            changes.update({"debug.kill.rank": draw.randrange(2), "debug.kill.point": draw.choice(points),
                            "debug.kill.step": draw.randrange(saved + 1, saved + 6)})
        process = self.start_train(changes, 2)
        if not by_point:
            time.sleep(draw.uniform(0, span))
            pids = rank_pids(str(self.folder))
            if pids:
                os.kill(pids[draw.choice(sorted(pids))], signal.SIGKILL)
        result = k25_testing.finish(process, 60)
        killed = result.code == KILLED or launcher_hangs(result)
        self.assertTrue(killed or result.code == 0, str(result))
        self.assertEqual(result.errors, [], str(result))
        self.assert_no_process_left()
        found = re.search(r"resumed from .* at step (\d+)", result.stdout)
        if re.search(r"(?m)^step=", result.stdout):  # it trained
            self.assertEqual(bool(found), saved > 0, str(result))
        if found:
            self.assertGreaterEqual(int(found.group(1)), saved)
        return killed

    def test_twenty_random_moments(self):
        self.changes = {**ORDERED, "train.steps": 60, "checkpoint.every": 1, "checkpoint.keep": 3,
                        "eval.every": 10, "data.validation": {"fraction": 0.1}}
        begin = time.monotonic()
        self.assert_ok(self.train(self.changes, 2, run_dir=self.folder / "straight"))
        span = time.monotonic() - begin
        straight = state_hash(self.folder / "straight")
        draw = random.Random(25)
        kills = 0
        while kills < self.KILLS:
            if self.kill_at_random(draw, span):
                kills += 1
            else:  # it ended first: compare, and begin another
                self.assertEqual(state_hash(self.run_dir), straight)
                self.run_dir = self.folder / f"run-{kills}"
        self.assert_ok(self.train(self.changes, 2))
        self.assertEqual(state_hash(self.run_dir), straight)


class LauncherHangs(unittest.TestCase):
    SAID = "[host:32170] PMIX ERROR: UNREACHABLE in file ptl_base_connection_hdlr.c at line 388\n"
    HANGS = "hangs: 32170 mpirun S futex_do_wait\nhangs: 32170 mpirun S poll_schedule_timeout.constprop.0\n"

    def hangs(self, stderr, code=None):
        return launcher_hangs(k25_testing.Result(code, "", stderr, 60.0))

    def test_mpirun_with_a_dead_rank_or_none(self):
        self.assertTrue(self.hangs(self.SAID + self.HANGS + "hangs: 32174 k25 Z 0\n"))
        self.assertTrue(self.hangs(self.SAID + self.HANGS))

    def test_a_rank_that_lives_is_ours(self):
        self.assertFalse(self.hangs(self.SAID + self.HANGS + "hangs: 32174 k25 Z 0\nhangs: 32175 k25 S futex_do_wait\n"))

    def test_not_without_its_message_or_with_an_exit_code(self):
        self.assertFalse(self.hangs(self.HANGS + "hangs: 32174 k25 Z 0\n"))
        self.assertFalse(self.hangs(self.SAID, code=1))


if __name__ == "__main__":
    unittest.main()
