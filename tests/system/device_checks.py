"""What holds on the CPU and on GPUs alike: what the tests of both (gpu_*_test.py are those of GPUs) check by name."""

import json
import os
import re
import signal
import time

import k25_testing
from k25_testing import state_hash
from train_testing import TrainTest, rank_pids

KILLED = 128 + signal.SIGKILL
ENDLESS = {"train.steps": 1000000, "data.validation": None}
# offload.optimizer, offload.params, offload.resident, offload.early
OFFLOADS = (("host", "device", 0, 0), ("host", "host", 0, 0), ("device", "host", 0, 0), ("host", "host", 0.33, 0),
            ("host", "device", 0, 0.5), ("host", "host", 0, 1))
RECOMPUTES = {"all": {"recompute.layers": "all", "recompute.check": True}, "second": {"recompute.layers": [2]},
              "middle": {"recompute.layers": "middle"}, "cheap": {"recompute.cheap": True},
              "mixed": {"recompute.layers": [1], "recompute.cheap": True}}


def losses(run_dir):
    return [record["loss"] for record in k25_testing.steps(run_dir)]


class BitChecks(TrainTest):
    """Runs that end with the same bits."""

    def straight_and_halves(self, changes, ranks, steps=10):
        """A run, and one that stopped at half and went on; their folders."""
        changes = {"optim.schedule.kind": "constant", **changes}
        straight = self.ordered({**changes, "train.steps": steps}, ranks, name="straight")
        self.ordered({**changes, "train.steps": steps // 2}, ranks, name="halves")
        halves = self.ordered({**changes, "train.steps": steps}, ranks, name="halves")
        self.assertEqual(state_hash(straight), state_hash(halves))
        self.assertEqual([s["step"] for s in k25_testing.steps(halves)], list(range(1, steps + 1)))
        for one, other in zip(k25_testing.steps(straight), k25_testing.steps(halves)):
            for key in ("loss", "gnorm", "lr", "samples", "tokens", "total_tokens", "epoch"):
                self.assertEqual(one[key], other[key], key)
        return straight, halves

    def check_offload(self, changes, ranks):
        """The clip holds some of these steps; checkpoints and evaluations come while updates run."""
        changes = {"train.steps": 6, "optim.clip": 0.7, "checkpoint.every": 2, "eval.every": 3, **changes}
        plain = self.ordered(changes, ranks, name="plain")
        for optimizer, params, resident, early in OFFLOADS:
            name = f"{optimizer}-{params}-{resident}-{early}"
            run = self.ordered({**changes, "offload.optimizer": optimizer, "offload.params": params,
                                "offload.resident": resident, "offload.early": early}, ranks, name=name)
            self.assertEqual(state_hash(run), state_hash(plain), name)
            self.assertEqual(losses(run), losses(plain), name)
            exposed = [s.get("offload_exposed_ms") for s in k25_testing.steps(run)]
            self.assertEqual(all(e is not None for e in exposed), optimizer == "host", name)
        on_disk = self.ordered({**changes, "offload.optimizer": "host", "offload.nvme": str(self.folder)}, ranks,
                               name="disk")
        self.assertEqual(state_hash(on_disk), state_hash(plain))
        self.assertEqual(list(self.folder.glob(".*")), [])  # nothing of the moments is left
        norms = [s["gnorm"] for s in k25_testing.steps(plain)]
        self.assertTrue(min(norms) < 0.7 < max(norms), norms)
        return plain

    def check_rounding(self, ranks):
        """Parameters are rounded by each gather (forward) or by the update."""
        hashes = {}
        for reshard in ("forward", "micro_batch", "step"):
            folder = self.ordered({"train.steps": 3, "train.precision": "bf16", "zero.reshard_after": reshard}, ranks,
                                  name=reshard)
            hashes[reshard] = state_hash(folder)
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def check_recompute(self, changes, ranks):
        plain = self.ordered(changes, ranks, name="plain")
        for name, selection in RECOMPUTES.items():
            again = self.ordered({**changes, **selection}, ranks, name=name)
            self.assertEqual(state_hash(again), state_hash(plain), name)
            self.assertEqual(losses(again), losses(plain), name)


class FaultChecks(TrainTest):
    """Ranks that are killed or stopped, and gradients that are not finite."""

    def start_until_step(self, changes, ranks, step):
        process = self.start_train({"train.steps": 100000, "train.batch": 12, **changes}, ranks)
        self.wait_for(lambda: self.steps_done() >= step, process)
        return process

    def check_killed_rank(self, ranks, said):
        """mpirun ends the survivors by SIGTERM; `said`: what one of them says then."""
        process = self.start_until_step({"debug.kill.rank": 1, "debug.kill.step": 7}, ranks, 6)
        begin = time.monotonic()
        result = k25_testing.finish(process, 30)
        self.assertEqual(result.code, KILLED, str(result))
        self.assertLess(time.monotonic() - begin, 5 * k25_testing.slowness())
        self.assertRegex(result.stderr, said)
        self.assert_no_process_left()

    def check_stopped_rank(self, ranks):
        process = self.start_until_step({"comm.timeout_s": 3, "debug.kill.rank": 1, "debug.kill.step": 7,
                                         "debug.kill.signal": int(signal.SIGSTOP)}, ranks, 6)
        stopped = rank_pids(str(self.folder))[1]
        begin = time.monotonic()
        result = k25_testing.finish(process, 60)
        self.assertLess(time.monotonic() - begin, 13 * k25_testing.slowness())
        self.assertEqual(result.code, 6, str(result))
        self.assertEqual(len(result.errors), 1, str(result))
        self.assertRegex(result.stderr, r"no progress in collective #\d+ \(.+\) from rank 1 \(host .+, "
                                        rf"pid {stopped}\)")
        self.assert_no_process_left()

    def assert_third_step_changed_nothing(self, folder, records):
        hashes = [state_hash(folder, f"step:{n}") for n in (2, 3, 4)]
        self.assertEqual(hashes[0], hashes[1])
        self.assertNotEqual(hashes[1], hashes[2])
        self.assertEqual([r["skipped"] for r in records], [0, 0, 1, 1])
        self.assertEqual([r["nan"] for r in records], [0, 0, 1, 1])
        self.assertEqual([r["skipped_now"] for r in records], [0, 0, 1, 0])
        self.assertEqual(records[2]["total_tokens"], records[1]["total_tokens"])
        self.assertGreater(records[3]["total_tokens"], records[2]["total_tokens"])

    def spoil_third_step(self, ranks, injection, warning):
        """Trains 4 steps, the third of them with a number that is not finite; the records."""
        folder = self.folder / f"{injection['tensor']}-{injection['value']}-{ranks}"
        result = self.assert_ok(self.train(
            {"train.steps": 4, "train.batch": 12, "checkpoint.every": 1, "checkpoint.keep": 9,
             "debug.inject": {"step": 3, **injection}}, ranks, run_dir=folder))
        self.assertEqual(len([w for w in result.warnings if "step 3" in w and warning in w]), 1, str(result))
        records = k25_testing.steps(folder)
        self.assert_third_step_changed_nothing(folder, records)
        shown = k25_testing.run(["inspect", folder, "--checkpoint", "step:3"])
        self.assertRegex(shown.stdout, r"updates 2\n")
        self.assertIn("skipped 1", shown.stdout)
        return records

    def check_spoilt_gradient(self, ranks, tensor, value, index):
        records = self.spoil_third_step(ranks, {"tensor": tensor, "index": index, "value": value}, tensor)
        self.assertNotIn("gnorm", records[2])

    def check_spoilt_loss(self, ranks, value):
        records = self.spoil_third_step(ranks, {"tensor": "loss", "index": 5, "value": value},
                                        "the loss is not finite; step skipped")
        self.assertNotIn("loss", records[2])

    def check_limit_of_skips(self, ranks):
        self.assert_ok(self.train({"train.steps": 2}, ranks))
        before = state_hash(self.run_dir)
        result = self.train({"train.steps": 20, "debug.inject.step": 0, "checkpoint.every": 100,
                             "debug.inject.tensor": "embedding", "debug.inject.value": "inf",
                             "numeric.max_consecutive_skips": 3}, ranks)
        self.assert_error(result, 5, "step 5", "3 steps in a row")
        self.assertEqual(len([w for w in result.warnings if "embedding" in w]), 3, str(result))
        self.assertEqual(state_hash(self.run_dir), before)
        self.assert_ok(self.train({"train.steps": 3}, ranks))


class WatchChecks(TrainTest):
    """What a run tells while it goes."""

    STALLS = {"train.steps": 24, "log.stall_s": 1.5, "comm.timeout_s": 30}

    def check_slow_read(self, ranks, rank):
        slow = {**self.STALLS, "debug.slow_read": {"rank": rank, "step": 15, "seconds": 3.0}}
        result = self.assert_ok(self.train(slow, ranks))
        records = [k25_testing.parse_json(line)
                   for line in (self.run_dir / "stalls.jsonl").read_text().splitlines()]
        self.assertEqual(len(records), 1, records)
        record = records[0]
        self.assertEqual((record["step"], record["phase"], record["rank"]), (15, "data", rank), record)
        if ranks > 1:
            self.assertTrue(2.5 <= record["spread_s"] <= 10, record)
        self.assertGreaterEqual(record["seconds"], 3.0)
        self.assertLess(record["median_s"], 1.0)
        self.assertGreaterEqual(record["rank_s"]["data"], 3.0)
        self.assertEqual(len(re.findall(rf"^k25: stall: step 15 .* rank {rank} \(host .+\) came last", result.stdout,
                                        re.M)), 1, str(result))
        plain = self.folder / "plain"
        self.assert_ok(self.train(self.STALLS, ranks, run_dir=plain))
        self.assertFalse((plain / "stalls.jsonl").exists())
        self.assertEqual(losses(self.run_dir), losses(plain))
        self.assertEqual(state_hash(self.run_dir), state_hash(plain))

    def dumped(self, rank):
        path = self.run_dir / "dumps" / f"collectives-rank-{rank:05}.txt"
        return path.read_text() if path.exists() else ""

    def stop(self, process):
        for pid in rank_pids(str(self.folder)).values():
            os.kill(pid, signal.SIGUSR1)
        self.assert_ok(k25_testing.finish(process, 60))

    def check_dump(self, ranks):
        """By ctl and by signal. So many steps are done first that there were more than 256 collectives."""
        process = self.start_train(ENDLESS, ranks)
        self.wait_for(lambda: self.steps_done() >= 100, process)
        shown = self.assert_ok(k25_testing.run(["ctl", self.run_dir, "dump"]))
        self.assertEqual(shown.stdout,
                         f"{ranks} of {ranks} ranks wrote their last collectives: {self.run_dir}/dumps\n")
        self.assertEqual(sorted(p.name for p in (self.run_dir / "dumps").glob("*")),
                         [f"collectives-rank-{rank:05}.txt" for rank in range(ranks)])
        for rank, pid in rank_pids(str(self.folder)).items():
            text = self.dumped(rank)
            self.assertRegex(text, rf"^rank {rank} of {ranks} \(host .+, pid {pid}\) at ")
            self.assertRegex(text, r"(?m)#\d+ all_gather step statistics \d+ bytes done in")
            self.assertEqual(len(re.findall(r"(?m)^[0-9.]+ s .* #\d+ ", text)), 256)
        before = [self.dumped(rank) for rank in range(ranks)]
        os.kill(rank_pids(str(self.folder))[ranks - 1], signal.SIGUSR2)  # to one rank: all of them dump
        self.wait_for(lambda: all(self.dumped(r) not in ("", before[r]) for r in range(ranks)), process)
        self.stop(process)
        self.assertFalse((self.run_dir / "control").exists())

    def check_profile(self, ranks):
        """Steps 2 to 4 of 6; what was measured, by range."""
        folder = self.folder / f"profiled-{ranks}"
        result = self.assert_ok(self.train({"train.steps": 6}, ranks, args=["--profile", "2:4"], run_dir=folder))
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
        return rows

    def check_profile_changes_no_number(self, ranks):
        self.assert_ok(self.train({}, ranks, args=["--profile", "1:4", "--profile-memory"]))
        self.assert_ok(self.train({}, ranks, run_dir=self.folder / "plain"))
        self.assertEqual(losses(self.run_dir), losses(self.folder / "plain"))

    def memory_report(self, ranks, places, changes=None):
        """memory.json of a run that passed; `places`: where its allocations may lie."""
        folder = self.folder / f"memory-{ranks}"
        self.assert_ok(self.train(changes, ranks, args=["--profile-memory"], run_dir=folder))
        memory = json.loads((folder / "memory.json").read_text())
        self.assertEqual(memory["ranks"], ranks or 1)
        self.assertEqual({a["where"] for a in memory["allocations"]}, places)
        self.assertEqual(sum(a["bytes"] for a in memory["allocations"] if a["where"] != "pinned"),
                         memory["measured_peak_bytes"])
        for row in memory["categories"]:
            self.assertEqual(row["allocated_bytes"], row["planned_bytes"], row)
        self.assertEqual({a["category"] for a in memory["allocations"] if a["where"] != "pinned"},
                         {row["category"] for row in memory["categories"] if row["planned_bytes"]})
        return memory
