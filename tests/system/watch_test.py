"""What a run tells while it goes: the machine, stalls, the last collectives, where time and memory go."""

import json
import os
import signal
import unittest

import k25_testing
from device_checks import ENDLESS, WatchChecks
from train_testing import TrainTest, rank_pids


class Hardware(TrainTest):
    def test_every_step_holds_the_last_sample(self):
        # One slow step: by the end of it the first sample is there.
        self.assert_ok(self.train({"debug.slow_read": {"rank": 0, "step": 2, "seconds": 0.5}}, 2))
        record = k25_testing.steps(self.run_dir)[-1]
        self.assertGreater(record["hw/rss_gib"], 0)
        self.assertGreater(record["hw/host_available_gib"], 0)
        self.assertGreaterEqual(record["hw/cpu_s"], 0)
        self.assertEqual([key for key in record if key.startswith("hw/gpu")], [])
        events = b"".join(p.read_bytes() for p in (self.run_dir / "tensorboard").iterdir())
        self.assertIn(b"hw/rss_gib", events)

    def test_off(self):
        result = self.assert_ok(self.train(
            {"log.hardware": False, "debug.slow_read": {"rank": 0, "step": 2, "seconds": 0.5}}))
        self.assertNotIn("hw/", (self.run_dir / "metrics.jsonl").read_text())
        self.assertEqual(result.warnings, [])


class Stalls(WatchChecks):
    def test_a_slow_read_is_one_record(self):
        self.check_slow_read(2, 1)

    def test_a_fresh_start_sets_the_records_aside(self):
        self.assert_ok(self.train({**self.STALLS, "train.steps": 12,
                                   "debug.slow_read": {"rank": 0, "step": 12, "seconds": 2.0}}))
        self.assertTrue((self.run_dir / "stalls.jsonl").exists())
        self.assert_ok(self.train({"train.resume": "none"}))
        self.assertFalse((self.run_dir / "stalls.jsonl").exists())
        self.assertTrue((self.run_dir / "stalls.jsonl.before-1").exists())


class Dump(WatchChecks):
    def test_of_a_live_run_by_ctl_and_by_signal(self):
        self.check_dump(2)
        gone = k25_testing.run(["ctl", self.run_dir, "dump"])
        self.assert_error(gone, 4, "no run is alive there", "pid")

    def test_while_a_rank_hangs(self):
        process = self.start_train({**ENDLESS, "comm.timeout_s": 60,
                                    "debug.kill": {"rank": 1, "step": 5, "signal": int(signal.SIGSTOP)}}, 2)
        self.wait_for(lambda: self.steps_done() >= 4, process)
        shown = self.assert_ok(k25_testing.run(["ctl", self.run_dir, "dump", "--timeout", "3"]))
        self.assertIn("1 of 2 ranks wrote", shown.stdout)
        self.assertIn("no answer within 3 s from rank 1", shown.stdout)
        stopped = rank_pids(str(self.folder))[1]
        self.assertRegex(self.dumped(0), r"(?m)^waiting for collective #\d+ \(.+\), missing rank 1 "
                                       rf"\(host .+, pid {stopped}\)$")
        self.assertRegex(self.dumped(0).splitlines()[-1], "waiting for [0-9.]+ s|queued for")
        os.kill(stopped, signal.SIGCONT)
        done = self.steps_done()
        self.wait_for(lambda: self.steps_done() > done, process)
        self.stop(process)

    def test_nobody_answers(self):
        process = self.start_train(ENDLESS, None)
        self.wait_for(lambda: self.steps_done() >= 2, process)
        os.kill(process.pid, signal.SIGSTOP)
        self.assert_stopped_run_does_not_answer(process)

    def assert_stopped_run_does_not_answer(self, process):
        result = k25_testing.run(["ctl", self.run_dir, "dump", "--timeout", "0.5"])
        os.kill(process.pid, signal.SIGCONT)
        self.assertEqual(result.code, 6, str(result))
        self.assertIn("no rank answered within 0.5 s", result.stderr)
        self.assertFalse((self.run_dir / "control").exists())
        os.kill(process.pid, signal.SIGUSR1)
        self.assert_ok(k25_testing.finish(process, 60))

    def test_what_is_no_run(self):
        (self.folder / "empty").mkdir()
        self.assert_error(k25_testing.run(["ctl", self.folder / "none", "dump"]), 2, "no such file")
        self.assert_error(k25_testing.run(["ctl", self.folder / "empty", "dump"]), 4, "no run directory")
        self.assert_error(k25_testing.run(["ctl", self.config_path.parent, "jump"]), 2, "unknown command 'jump'",
                          "dump")
        self.assert_error(k25_testing.run(["ctl", self.folder / "empty"]), 2, "COMMAND")


class Profile(WatchChecks):
    def test_steps_by_phase_and_layer(self):
        for ranks in (None, 2):
            self.assertNotIn("device_ms_per_step", self.check_profile(ranks)["step"])

    def test_it_changes_no_number(self):
        self.check_profile_changes_no_number(2)

    def test_a_run_that_ends_before(self):
        self.assert_ok(self.train({"train.steps": 3}))
        result = self.assert_ok(self.train({"train.steps": 6}, args=["--profile", "2:5"]))  # resumed at 3
        profile = json.loads((self.run_dir / "profile-2-5.json").read_text())
        self.assertEqual((profile["first_step"], profile["last_step"]), (4, 5), str(result))

    def test_steps_that_there_are_not(self):
        for text, words in (("5:3", "is before the first"), ("0:3", "counted from 1"), ("x", "expected A:B"),
                            ("1:2.5", "expected A:B"), ("3:99", "the run has 4 steps")):
            result = self.train({}, 2, args=["--profile", text])
            self.assert_error(result, 2, words)
            self.assertFalse(self.run_dir.exists())


class Memory(WatchChecks):
    def test_every_byte_has_a_category_and_the_peak_is_the_plan(self):
        for ranks in (None, 2):
            memory = self.memory_report(ranks, {"host"})
            self.assertEqual(memory["measured_peak_bytes"], memory["planned_peak_bytes"])
            self.assertGreater(memory["peak_resident_bytes"], memory["measured_peak_bytes"])


if __name__ == "__main__":
    unittest.main()
