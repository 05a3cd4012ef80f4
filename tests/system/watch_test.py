"""What a run tells while it goes: the machine, stalls, the last collectives, where time and memory go."""

import json
import os
import re
import signal
import unittest

import k25_testing
from train_testing import TrainTest, rank_pids


def losses(run_dir):
    return [record["loss"] for record in k25_testing.steps(run_dir)]


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


class Stalls(TrainTest):
    CHANGES = {"train.steps": 24, "log.stall_s": 1.5, "comm.timeout_s": 30}

    def test_a_slow_read_is_one_record(self):
        slow = {**self.CHANGES, "debug.slow_read": {"rank": 1, "step": 15, "seconds": 3.0}}
        result = self.assert_ok(self.train(slow, 2))
        records = [k25_testing.parse_json(line)
                   for line in (self.run_dir / "stalls.jsonl").read_text().splitlines()]
        self.assertEqual(len(records), 1, records)
        record = records[0]
        self.assertEqual((record["step"], record["phase"], record["rank"]), (15, "data", 1), record)
        self.assertTrue(2.5 <= record["spread_s"] <= 10, record)
        self.assertGreaterEqual(record["seconds"], 3.0)
        self.assertLess(record["median_s"], 1.0)
        self.assertGreaterEqual(record["rank_s"]["data"], 3.0)
        self.assertEqual(len(re.findall(r"^k25: stall: step 15 .* rank 1 \(host .+\) came last", result.stdout,
                                        re.M)), 1, str(result))
        plain = self.folder / "plain"
        self.assert_ok(self.train(self.CHANGES, 2, run_dir=plain))
        self.assertFalse((plain / "stalls.jsonl").exists())
        self.assertEqual(losses(self.run_dir), losses(plain))
        self.assertEqual(k25_testing.state_hash(self.run_dir), k25_testing.state_hash(plain))

    def test_a_fresh_start_sets_the_records_aside(self):
        self.assert_ok(self.train({**self.CHANGES, "train.steps": 12,
                                   "debug.slow_read": {"rank": 0, "step": 12, "seconds": 2.0}}))
        self.assertTrue((self.run_dir / "stalls.jsonl").exists())
        self.assert_ok(self.train({"train.resume": "none"}))
        self.assertFalse((self.run_dir / "stalls.jsonl").exists())
        self.assertTrue((self.run_dir / "stalls.jsonl.before-1").exists())


class Dump(TrainTest):
    def dumps(self):
        return sorted(p.name for p in (self.run_dir / "dumps").glob("*"))

    def text(self, rank):
        path = self.run_dir / "dumps" / f"collectives-rank-{rank:05}.txt"
        return path.read_text() if path.exists() else ""

    def stop(self, process):
        for pid in rank_pids(str(self.folder)).values():
            os.kill(pid, signal.SIGUSR1)
        self.assert_ok(k25_testing.finish(process, 60))

    def test_of_a_live_run_by_ctl_and_by_signal(self):
        process = self.start_train({"train.steps": 1000000, "data.validation": None}, 2)
        self.wait_for(lambda: self.steps_done() >= 40, process)  # more than 256 collectives
        shown = self.assert_ok(k25_testing.run(["ctl", self.run_dir, "dump"]))
        self.assertEqual(shown.stdout, f"2 of 2 ranks wrote their last collectives: {self.run_dir}/dumps\n")
        self.assertEqual(self.dumps(), ["collectives-rank-00000.txt", "collectives-rank-00001.txt"])
        for rank, pid in rank_pids(str(self.folder)).items():
            text = self.text(rank)
            self.assertRegex(text, rf"^rank {rank} of 2 \(host .+, pid {pid}\) at ")
            self.assertRegex(text, r"(?m)#\d+ all_gather step statistics \d+ bytes done in")
            self.assertEqual(len(re.findall(r"(?m)^[0-9.]+ s .* #\d+ ", text)), 256)
        before = [self.text(rank) for rank in (0, 1)]
        os.kill(rank_pids(str(self.folder))[1], signal.SIGUSR2)  # to one rank: all of them dump
        self.wait_for(lambda: all(self.text(r) not in ("", before[r]) for r in (0, 1)), process)
        self.stop(process)
        self.assertFalse((self.run_dir / "control").exists())
        gone = k25_testing.run(["ctl", self.run_dir, "dump"])
        self.assert_error(gone, 4, "no run is alive there", "pid")

    def test_while_a_rank_hangs(self):
        process = self.start_train({"train.steps": 1000000, "data.validation": None, "comm.timeout_s": 60,
                                    "debug.kill": {"rank": 1, "step": 5, "signal": int(signal.SIGSTOP)}}, 2)
        self.wait_for(lambda: self.steps_done() >= 4, process)
        shown = self.assert_ok(k25_testing.run(["ctl", self.run_dir, "dump", "--timeout", "3"]))
        self.assertIn("1 of 2 ranks wrote", shown.stdout)
        self.assertIn("no answer within 3 s from rank 1", shown.stdout)
        stopped = rank_pids(str(self.folder))[1]
        self.assertRegex(self.text(0), r"(?m)^waiting for collective #\d+ \(.+\), missing rank 1 "
                                       rf"\(host .+, pid {stopped}\)$")
        self.assertRegex(self.text(0).splitlines()[-1], "waiting for [0-9.]+ s|queued for")
        os.kill(stopped, signal.SIGCONT)
        done = self.steps_done()
        self.wait_for(lambda: self.steps_done() > done, process)
        self.stop(process)

    def test_nobody_answers(self):
        process = self.start_train({"train.steps": 1000000, "data.validation": None}, None)
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


class Profile(TrainTest):
    def test_steps_by_phase_and_layer(self):
        for ranks in (None, 2):
            folder = self.folder / f"run-{ranks}"
            result = self.assert_ok(self.train({"train.steps": 6}, ranks, args=["--profile", "2:4"],
                                               run_dir=folder))
            self.assertIn(f"profile of steps 2 to 4: {folder}/profile-2-4.json", result.stdout)
            profile = json.loads((folder / "profile-2-4.json").read_text())
            self.assertEqual((profile["first_step"], profile["last_step"], profile["ranks"]), (2, 4, ranks or 1))
            rows = {row["range"]: row for row in profile["ranges"]}
            micro_batches = 3 * 8 // (ranks or 1)
            self.assertEqual(rows["step"]["count"], 3)
            for name in ("step/data", "step/forward", "step/forward/embedding", "step/forward/layer 0",
                         "step/forward/layer 1", "step/forward/head", "step/backward/layer 1",
                         "step/backward/layer 0", "step/backward/embedding"):
                self.assertEqual(rows[name]["count"], micro_batches, name)
            for name in ("step/wait", "step/update"):
                self.assertEqual(rows[name]["count"], 3, name)
            self.assertNotIn("step/forward/layer 2", rows)
            parts = sum(row["host_ms_per_step"] for name, row in rows.items() if name.count("/") == 1)
            self.assertLessEqual(parts, rows["step"]["host_ms_per_step"])
            self.assertGreater(rows["step/forward/layer 0"]["host_ms_per_step"], 0)
            self.assertNotIn("device_ms_per_step", rows["step"])

    def test_it_changes_no_number(self):
        self.assert_ok(self.train({}, 2, args=["--profile", "1:4", "--profile-memory"]))
        self.assert_ok(self.train({}, 2, run_dir=self.folder / "plain"))
        self.assertEqual(losses(self.run_dir), losses(self.folder / "plain"))

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


class Memory(TrainTest):
    def test_every_byte_has_a_category_and_the_peak_is_the_plan(self):
        for ranks in (None, 2):
            folder = self.folder / f"run-{ranks}"
            self.assert_ok(self.train({}, ranks, args=["--profile-memory"], run_dir=folder))
            memory = json.loads((folder / "memory.json").read_text())
            self.assertEqual(memory["ranks"], ranks or 1)
            self.assertEqual(memory["measured_peak_bytes"], memory["planned_peak_bytes"])
            self.assertEqual(sum(a["bytes"] for a in memory["allocations"]), memory["measured_peak_bytes"])
            self.assertEqual({a["where"] for a in memory["allocations"]}, {"host"})
            for row in memory["categories"]:
                self.assertEqual(row["allocated_bytes"], row["planned_bytes"], row)
            self.assertEqual({a["category"] for a in memory["allocations"]},
                             {row["category"] for row in memory["categories"] if row["planned_bytes"]})
            self.assertGreater(memory["peak_resident_bytes"], memory["measured_peak_bytes"])


if __name__ == "__main__":
    unittest.main()
