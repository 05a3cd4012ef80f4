"""Stopping and going on: the same bits as a run that never stopped, and clear words when it cannot be."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
import unittest

import k25_testing
from device_checks import BitChecks
from k25_testing import state_hash
from train_testing import ORDERED, TrainTest, rank_pids


class SameBits(BitChecks):
    def test_fp32(self):
        self.straight_and_halves({}, 2)

    def test_bf16(self):
        self.straight_and_halves({"train.precision": "bf16"}, 2)

    def test_alone_with_evaluation(self):
        self.straight_and_halves({"data.validation.fraction": 0.1, "eval.every": 2,
                                  "checkpoint.every": 3}, None)

    def test_from_four_ranks_to_three_to_one_to_two(self):
        straight = self.ordered({"train.steps": 20}, 1, name="straight")
        for ranks, steps in ((4, 5), (3, 10), (1, 15), (2, 20)):
            self.ordered({"train.steps": steps}, ranks, name="parts")
        self.assertEqual(state_hash(straight), state_hash(self.folder / "parts"))
        samples = [n for s in k25_testing.steps(self.folder / "parts") for n in s["samples"]]
        self.assertEqual(samples, list(range(20 * 24)))

    def test_a_schedule_over_kills_and_rank_counts(self):
        # The schedule's end is part of the run, so its parts end by kills.
        changes = {"optim.schedule.kind": "cosine", "optim.schedule.warmup": 2, "checkpoint.every": 5}
        straight = self.ordered(changes, 1, name="straight")
        parts = self.folder / "parts"
        for ranks, step in ((4, 6), (3, 11), (1, 16)):
            killed = self.train({**ORDERED, **changes, "debug.kill.rank": 0, "debug.kill.step": step}, ranks,
                                run_dir=parts)
            self.assertEqual(killed.code, 128 + signal.SIGKILL, str(killed))
        last = self.assert_ok(self.train({**ORDERED, **changes}, 2, run_dir=parts))
        self.assertRegex(last.stdout, r"resumed from .* at step (5|10|15)\n")
        self.assertEqual(state_hash(straight), state_hash(parts))
        self.assertEqual(len({s["lr"] for s in k25_testing.steps(parts)}), 20)

    def test_over_the_end_of_epochs(self):
        # Some 40 windows an epoch: 12 steps of 8 see 2.4 epochs, stopped in the middle of the first two.
        manifest = k25_testing.corpus({"law": {f"{i}.txt": k25_testing.words(60, i) for i in range(6)}})
        changes = {"data.validation": None, "data.sequence": 32}
        self.assert_ok(self.train({**changes, "train.steps": 30}, 2, manifest,
                                  run_dir=self.folder / "straight"))
        for ranks, steps in ((2, 2), (1, 13), (2, 30)):
            self.assert_ok(self.train({**changes, "train.steps": steps, "reduce.slots": 2}, ranks, manifest,
                                      run_dir=self.folder / "parts"))
        self.assertEqual(state_hash(self.folder / "straight"), state_hash(self.folder / "parts"))
        self.assertGreater(k25_testing.steps(self.folder / "parts")[-1]["epoch"], 2.0)

    def test_a_tensor_smaller_than_the_new_rank_count(self):
        small = {"model.hidden": 4, "model.heads": 1, "model.kv_heads": 1, "train.batch": 20,
                 "train.micro_batch": 1, "reduce.slots": 20}
        straight = self.ordered({**small, "train.steps": 4}, 1, name="straight")
        self.ordered({**small, "train.steps": 2}, 1, name="parts")
        self.ordered({**small, "train.steps": 4}, 5, name="parts")
        self.assertEqual(state_hash(straight), state_hash(self.folder / "parts"))


def mpirun_forwards_usr1():
    """Whether a shell under mpirun hears of a SIGUSR1 that mpirun gets; the mpirun of some machines forwards none."""
    listener = "trap 'exit 0' USR1; echo ready; for i in $(seq 100); do sleep 0.1; done; exit 1"
    with subprocess.Popen(["mpirun", "-q", "-np", "1", "sh", "-c", listener],
                          env=k25_testing.environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, start_new_session=True) as process:
        process.stdout.readline()
        while process.poll() is None:
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
        return process.returncode == 0


class Signals(TrainTest):
    LONG = {**ORDERED, "train.steps": 100000, "eval.every": 3, "checkpoint.every": 5,
            "data.validation": {"fraction": 0.1}}

    def stop_with_usr1(self, ranks, pick):
        process = self.start_train(self.LONG, ranks)
        self.wait_for(lambda: self.steps_done() >= 7, process)
        pick(process)
        result = k25_testing.finish(process, 60)
        self.assertEqual(result.code, 0, f"{self.steps_done()} steps are done\n{result}")
        self.assertIn("saved and stopped at step", result.stdout)
        stopped = self.saved_steps()[-1]
        self.assertIn(f"saved and stopped at step {stopped} ", result.stdout)
        steps = stopped + 3
        self.assert_ok(self.train({**self.LONG, "train.steps": steps}, ranks))
        straight = self.folder / "straight"
        self.assert_ok(self.train({**self.LONG, "train.steps": steps}, ranks, run_dir=straight))
        self.assertEqual(state_hash(self.run_dir), state_hash(straight))

    def test_usr1_to_one_rank_only(self):
        self.stop_with_usr1(2, lambda p: os.kill(rank_pids(str(self.folder))[1], signal.SIGUSR1))

    def test_usr1_to_mpirun(self):
        if not mpirun_forwards_usr1():
            self.skipTest("this mpirun forwards no SIGUSR1 to any program (docs/usage.md says what to do then)")
        # mpirun loses a signal now and then before it forwards it: repeat it, as a user would.
        def send_until_stopped(process):
            def again():
                while process.poll() is None:
                    os.kill(process.pid, signal.SIGUSR1)
                    time.sleep(2)
            threading.Thread(target=again, daemon=True).start()

        self.stop_with_usr1(2, send_until_stopped)

    def test_usr1_alone(self):
        self.stop_with_usr1(None, lambda p: os.kill(p.pid, signal.SIGUSR1))

    def stop_with_term(self, ranks, codes):
        process = self.start_train(self.LONG, ranks)
        self.wait_for(lambda: len(self.saved_steps()) > 0 and self.steps_done() >= 7, process)
        os.kill(process.pid, signal.SIGTERM)
        result = k25_testing.finish(process, 15)
        self.assertIn(result.code, codes, str(result))
        self.assertRegex(result.stderr, r"(?m)^k25: .*stopped by signal 15")
        self.assert_no_process_left()
        again = self.assert_ok(self.train({**self.LONG, "train.steps": self.saved_steps()[-1] + 2}, ranks))
        self.assertIn("resumed from", again.stdout)
        straight = self.folder / "straight"
        self.assert_ok(self.train({**self.LONG, "train.steps": self.saved_steps()[-1]}, ranks,
                                  run_dir=straight))
        self.assertEqual(state_hash(self.run_dir), state_hash(straight))

    def test_term_to_mpirun(self):
        self.stop_with_term(2, (128 + signal.SIGTERM, 1))

    def test_term_alone(self):
        self.stop_with_term(None, (128 + signal.SIGTERM,))


class Targets(TrainTest):
    def test_missing_targets_are_errors_and_never_a_fresh_start(self):
        for args, words in ((["--resume", "step:3"], "step:3"),
                            (["--resume", self.folder / "nowhere"], "nowhere")):
            self.assert_error(self.train({}, 2, args=args), 4, words)
            self.assertEqual(self.saved_steps(), [])
        self.assert_ok(self.train({"checkpoint.every": 2}))
        result = self.train({}, args=["--resume", "step:3"])
        self.assert_error(result, 4, "steps there: 2, 4")

    def test_a_step_that_is_no_number_is_a_usage_error(self):
        self.assert_ok(self.train({"train.steps": 1}))
        for text in ("x", "", "-1", "1x", "1.0"):
            self.assert_error(self.train({}, 2, args=["--resume", f"step:{text}"]), 2,
                              f"step:{text}: '{text}' is not a number", "step:N")
        self.assertEqual(self.saved_steps(), [1])

    def test_a_named_step_sets_later_ones_aside(self):
        straight = self.ordered({"train.steps": 6}, name="straight")
        changes = {**ORDERED, "train.steps": 6, "checkpoint.every": 2, "checkpoint.keep": 9}
        self.assert_ok(self.train(changes))
        result = self.assert_ok(self.train(changes, args=["--resume", "step:2"]))
        self.assertIn("is now step-000004.set-aside-1", result.stderr)
        self.assertIn("at step 2", result.stdout)
        self.assertEqual(self.saved_steps(), [2, 4, 6])
        self.assertEqual(state_hash(self.run_dir), state_hash(straight))
        self.assertEqual([s["step"] for s in k25_testing.steps(self.run_dir)], [1, 2, 3, 4, 5, 6])

    def test_a_renamed_checkpoint_is_kept(self):
        changes = {"train.steps": 4, "checkpoint.every": 2, "checkpoint.keep": 9}
        self.assert_ok(self.train(changes))
        before = state_hash(self.run_dir, "step:4")
        folder = self.run_dir / "checkpoints"
        (folder / "step-000004").rename(folder / "step-000006")
        result = self.assert_ok(self.train({**changes, "train.steps": 6}, args=["--resume", "auto"]))
        self.assertIn("step-000006 is passed over", result.stderr)
        self.assertIn("give the folder back its name, step-000004", result.stderr)
        self.assertIn("is now step-000006.set-aside-1", result.stderr)
        self.assertEqual(self.saved_steps(), [2, 4, 6])
        (folder / "step-000006.set-aside-1").rename(folder / "step-000004.set-aside-1")
        self.assertEqual(state_hash(folder / "step-000004.set-aside-1"), before)

    def test_foreign_lines_of_the_metrics_are_kept(self):
        self.assert_ok(self.train({"train.steps": 2}))
        log = self.run_dir / "metrics.jsonl"
        log.write_text("# a note of mine\n" + log.read_text())
        before = log.read_text()
        result = self.assert_ok(self.train({"train.steps": 3}))
        told = [w for w in result.warnings if "metrics.jsonl" in w]
        self.assertEqual(len(told), 1, str(result))
        self.assertIn("metrics.jsonl:1: no line of a run", told[0])
        self.assertEqual((self.run_dir / "metrics.jsonl.before-1").read_text(), before)
        self.assertEqual([s["step"] for s in k25_testing.steps(self.run_dir)], [1, 2, 3])

    def test_the_latest_checkpoint_of_a_run_that_goes_on(self):
        self.write_config({"train.steps": 100000, "checkpoint.every": 1, "checkpoint.keep": 1,
                           "checkpoint.best": False, "eval.every": 0})
        process = k25_testing.start(["train", self.config_path])
        k25_testing.wait_for(lambda: (self.run_dir / "latest").exists(), "the first checkpoint")
        for _ in range(3):
            result = k25_testing.run(["eval", self.run_dir, "--checkpoint", "latest"])
            if result.code != 0:
                self.assert_told_as_removed(result)
        process.send_signal(signal.SIGTERM)
        k25_testing.finish(process)

    def assert_told_as_removed(self, result):
        self.assertEqual(result.code, 4, str(result))
        self.assertEqual(len(result.errors), 1, str(result))
        self.assertIn("was removed while it was read", result.errors[0])

    def test_none_keeps_the_earlier_run(self):
        self.assert_ok(self.train({"train.steps": 2}))
        before = state_hash(self.run_dir)
        result = self.assert_ok(self.train({"train.steps": 1}, args=["--resume", "none"]))
        self.assertIn("*.before-1", result.stderr)
        self.assertEqual(self.saved_steps(), [1])
        self.assertEqual(state_hash(self.run_dir / "checkpoints.before-1" / "step-000002"), before)

    def test_a_disk_without_room_leaves_the_run_as_it_was(self):
        self.assert_ok(self.train({"train.steps": 6, "checkpoint.every": 2, "checkpoint.keep": 9}))
        before = k25_testing.tree(self.run_dir)
        del before["lock"]  # signed by every start
        for resume in ("none", "step:2", "auto"):
            result = self.train({"train.steps": 8}, args=["--resume", resume], file_limit=500)
            self.assert_error(result, 4, self.run_dir, "File too large")
            after = k25_testing.tree(self.run_dir)
            del after["lock"]
            self.assertEqual(after, before, resume)
        self.assertEqual(len(self.assert_ok(self.train({"train.steps": 8})).warnings), 0)
        self.assertEqual([s["step"] for s in k25_testing.steps(self.run_dir)], list(range(1, 9)))

    def test_the_last_save_without_its_pointer(self):
        straight = self.ordered({"train.steps": 3, "checkpoint.every": 1}, 1, name="straight")
        killed = self.train({**ORDERED, "train.steps": 3, "checkpoint.every": 1, "debug.kill.rank": 0,
                             "debug.kill.point": "after_rename_before_latest", "debug.kill.step": 3}, 1)
        self.assertEqual(killed.code, 128 + signal.SIGKILL, str(killed))
        self.assertEqual((self.run_dir / "latest").read_text(), "step-000002\n")
        again = self.assert_ok(self.train({**ORDERED, "train.steps": 3, "checkpoint.every": 1}, 1))
        self.assertIn("nothing to do", again.stdout)
        self.assertEqual((self.run_dir / "latest").read_text(), "step-000003\n")
        self.assertEqual(state_hash(self.run_dir), state_hash(straight))

    def test_a_history_without_checkpoints_is_set_aside(self):
        self.assert_ok(self.train({"train.steps": 2}))
        history = (self.run_dir / "metrics.jsonl").read_text()
        shutil.rmtree(self.run_dir / "checkpoints")
        result = self.assert_ok(self.train({"train.steps": 1}))
        self.assertIn("no checkpoint to go on from", result.stderr)
        self.assertEqual((self.run_dir / "metrics.jsonl.before-1").read_text(), history)
        self.assertEqual([s["step"] for s in k25_testing.steps(self.run_dir)], [1])

    def test_a_path_in_another_run_directory(self):
        first = self.ordered({"train.steps": 2}, 2, name="first")
        second = self.ordered({"train.steps": 4}, 1, name="second", args=["--resume", first])
        straight = self.ordered({"train.steps": 4}, 1, name="straight")
        self.assertEqual(state_hash(second), state_hash(straight))

    def test_nothing_left_to_do(self):
        self.assert_ok(self.train({"train.steps": 2}, 2))
        before = state_hash(self.run_dir)
        result = self.assert_ok(self.train({"train.steps": 2}, 2))
        self.assertIn("nothing to do", result.stdout)
        self.assertEqual(state_hash(self.run_dir), before)

    def test_another_model_is_refused_with_the_differences(self):
        self.assert_ok(self.train({"train.steps": 1}))
        result = self.train({"model.ffn": 48}, 2)
        self.assert_error(result, 4, "layers.0.ffn.gate_up", "has shape")
        shapes = re.findall(r"has shape (.*) in the checkpoint, (.*) in the model", result.stderr)
        self.assertEqual([pair for pair in shapes if pair[0] == pair[1]], [], result.stderr)

    def test_another_function_of_the_same_weights_is_refused(self):
        self.assert_ok(self.train({"train.steps": 1}, 2))
        before = k25_testing.tree(self.run_dir)
        cases = {"model.rope_theta": (50000, "10000"), "model.norm_eps": (0.001, "1e-06")}
        for key, (value, was) in cases.items():
            self.assert_error(self.train({key: value}, 2), 4, f"{key} is {was} there and {value} in the config",
                              "step-000001", "train.init_from")
        # As many weights, cut into other heads.
        self.assert_error(self.train({"model.heads": 4, "model.kv_heads": 2}, 2), 4,
                          "model.heads is 2 there and 4 in the config", "model.kv_heads is 1 there and 2")
        after = k25_testing.tree(self.run_dir)
        before.pop("lock"), after.pop("lock")
        self.assertEqual(after, before)
        # The weights alone: other constants are a choice, other heads are not.
        other = self.folder / "other"
        cut = {"model.heads": 4, "model.kv_heads": 2, "model.head_dim": 4}
        self.assert_error(self.train({"train.init_from": str(self.run_dir), **cut}, 2, run_dir=other), 4,
                          "model.heads is 2 there and 4 in the config", "model.kv_heads is 1 there and 2",
                          "model.head_dim is 8 there and 4", "step-000001")
        self.assertFalse((other / "checkpoints").exists())
        told = self.differences(self.train({"train.init_from": str(self.run_dir), "model.rope_theta": 50000}, 2,
                                           run_dir=other))
        self.assertEqual(len(told), 1, told)
        self.assertIn("model.rope_theta 10000 -> 50000 (the weights of", told[0])

    def differences(self, result):
        self.assert_ok(result)
        return [w for w in result.warnings if "differs from the checkpoint" in w]

    def test_what_differs_is_one_warning(self):
        self.assert_ok(self.train({"train.steps": 1, "reduce.slots": 2}, 2))
        self.assertEqual(self.differences(self.train({"train.steps": 2, "reduce.slots": 2}, 2)), [])
        changes = {"train.steps": 3, "reduce.slots": 4, "train.batch": 16, "optim.lr": 0.002,
                   "optim.freeze": ["head"], "train.precision": "bf16"}
        found = self.differences(self.train(changes, 2))
        self.assertEqual(len(found), 1)
        for words in ("differs from the checkpoint: train.batch 8 -> 16, reduce.slots 2 -> 4",
                      "optim.lr 0.001 -> 0.002", "optim.freeze [] -> [head]",
                      "train.precision fp32 -> bf16"):
            self.assertIn(words, found[0])
        self.assertNotIn("same batches", found[0])
        self.assertEqual(self.differences(self.train({**changes, "train.steps": 4}, 2)), [])

    def test_another_instruction_set_is_told(self):
        self.assert_ok(self.train({"train.steps": 1}, 2, env={"K25_CPU_ISA": "x86-64"}))
        again = self.train({"train.steps": 2}, 2, env={"K25_CPU_ISA": "x86-64"})
        self.assertEqual(self.differences(again), [])
        if "cpu=x86-64-v" not in self.assert_ok(self.train({"train.steps": 1}, run_dir=self.folder / "x")).stdout:
            self.skipTest("this machine has no other instruction set")
        found = self.differences(self.train({"train.steps": 3}, 2))
        self.assertEqual(len(found), 1)
        self.assertRegex(found[0], r"machine \(cpu=x86-64 .*\) -> \(cpu=x86-64-v\d ")

    def test_another_seed_is_refused(self):
        self.assert_ok(self.train({"train.steps": 1}))
        self.assert_error(self.train({"run.seed": 8}, 2), 2, "run.seed is 8", "trained with 7")

    def test_other_data_is_refused_unless_allowed(self):
        self.assert_ok(self.train({"train.steps": 2}))
        longer = k25_testing.corpus({"law": {f"t{i}.txt": k25_testing.words(170, i) for i in range(9)}},
                                    options=["--tokenizer", k25_testing.corpus().parent / "tokenizer.model"])
        self.assert_error(self.train({}, 2, longer), 3, "was trained on corpus", "data.train now has")
        self.assert_error(self.train({"data.validation.fraction": 0.4}, 2), 3,
                          "data.validation changed", f"(data.validation: {self.config_path}:")
        self.assert_error(self.train({"data.sequence": 16}, 2), 3, "data.sequence")
        result = self.assert_ok(self.train({"train.allow_data_change": True}, 2, longer))
        self.assertIn("a new epoch starts", result.stderr)

    def test_init_from_starts_a_fresh_run_with_the_weights(self):
        self.assert_ok(self.train({"train.steps": 4, "eval.every": 4}, 2))
        last = [m for m in k25_testing.metrics(self.run_dir) if m.get("event") == "eval"][-1]
        other = self.folder / "other"
        self.assert_ok(self.train({"train.init_from": str(self.run_dir), "train.steps": 1},
                                  run_dir=other))
        first = [m for m in k25_testing.metrics(other) if m.get("event") == "eval"][0]
        self.assertEqual((first["step"], first["val_loss"]), (0, last["val_loss"]))
        self.assertEqual([s["step"] for s in k25_testing.steps(other)], [1])
        missing = self.train({"train.init_from": str(self.folder / "nowhere")}, 2,
                             run_dir=self.folder / "third")
        self.assert_error(missing, 4, "nowhere")
        folder = k25_testing.corpus().parent
        result = self.train({"train.init_from": str(folder)}, 2, run_dir=self.folder / "third")
        self.assert_error(result, 4, folder / "manifest.json", f"(train.init_from: {self.config_path}:")
        self.assertNotIn("data.train", result.stderr)


class RefusedStarts(TrainTest):
    """A start that fails leaves the run directory as it was; one that goes on sets aside last."""

    def setUp(self):
        super().setUp()
        self.assert_ok(self.train({"train.steps": 2, "checkpoint.every": 1, "checkpoint.keep": 9}, 2))
        self.other = self.folder / "other"
        self.assert_ok(self.train({"train.steps": 4}, run_dir=self.other))

    def contents(self):
        found = k25_testing.tree(self.run_dir)
        found.pop("lock")  # says who came last
        return found

    def test_the_old_run_stays(self):
        damaged = self.folder / "damaged"
        shutil.copytree(self.other, damaged)
        shard = self.shard(4, 0, damaged)
        shard.write_bytes(shard.read_bytes()[:-1])
        none = ["--resume", "none"]
        cases = (({"train.init_from": str(self.folder / "nowhere")}, none, 4, "nowhere"),
                 ({"train.init_from": str(damaged)}, none, 4, "truncated"),
                 ({"train.init_from": str(self.other), "model.ffn": 48}, none, 4, "has shape"),
                 ({"debug.inject": {"step": 1, "tensor": "no.such"}}, none, 2, "no.such"),
                 ({"data.train": str(self.folder / "none.json")}, none, 3, "none.json"),
                 ({"model.hidden": 24, "train.steps": 9}, ["--resume", self.other], 4, "model.hidden is 16"),
                 ({"run.seed": 8, "train.steps": 9}, ["--resume", "step:1"], 2, "run.seed"),
                 ({"model.ffn": 48, "train.steps": 9}, ["--resume", "step:1"], 4, "has shape"))
        before = self.contents()
        for changes, args, code, words in cases:
            with self.subTest(words):
                self.assert_error(self.train(changes, 2, args=args), code, words)
                self.assertEqual(self.contents(), before)
        again = self.assert_ok(self.train({"train.steps": 3}))
        self.assertIn("at step 2", again.stdout)

    def test_a_run_that_is_done_elsewhere(self):
        before = self.contents()
        for run_dir in (self.run_dir, self.folder / "fresh"):
            result = self.train({"train.steps": 4}, 2, run_dir=run_dir, args=["--resume", self.other])
            self.assert_error(result, 4, "train.steps: 4 is reached already", "step-000004, at step 4",
                              "raise train.steps above 4")
        self.assertEqual(self.contents(), before)
        self.assertFalse((self.folder / "fresh").exists())
        self.assert_ok(self.train({"train.steps": 5}, 2, args=["--resume", self.other]))
        self.assertEqual(self.saved_steps(), [5])

    def test_nothing_to_do_changes_nothing(self):
        before = self.contents()
        for args in ([], ["--resume", "step:2"], ["--resume", self.run_dir]):
            result = self.assert_ok(self.train({"train.steps": 2, "optim.lr": 0.5}, 2, args=args))
            self.assertIn("nothing to do", result.stdout)
            self.assertEqual(self.contents(), before)

    def test_the_configuration_is_set_aside_with_the_run(self):
        old = (self.run_dir / "config.yaml").read_text()
        self.assert_ok(self.train({"train.steps": 1}, args=["--resume", "none"]))
        self.assertEqual((self.run_dir / "config.yaml.before-1").read_text(), old)
        self.assertIn("steps: 1\n", (self.run_dir / "config.yaml").read_text())

    def test_a_run_starts_over_from_its_own_weights(self):
        before = state_hash(self.run_dir)
        self.assert_ok(self.train({"train.steps": 1, "train.init_from": str(self.run_dir)}, 2,
                                  args=["--resume", "none"]))
        self.assertEqual(self.saved_steps(), [1])
        self.assertEqual(state_hash(self.run_dir / "checkpoints.before-1" / "step-000002"), before)

    def test_init_from_has_no_effect_on_a_run_that_goes_on(self):
        def told(result):
            return [w for w in self.assert_ok(result).warnings if "init_from" in w]
        changes = {"train.steps": 3, "train.init_from": str(self.other), "optim.schedule.kind": "constant"}
        found = told(self.train(changes, 2))
        self.assertEqual(len(found), 1, found)
        self.assertIn(f"train.init_from {self.other} has no effect, because the run goes on from", found[0])
        self.assertNotIn("->", found[0])
        third = self.folder / "third"
        self.assertEqual(told(self.train(changes, run_dir=third)), [])
        self.assertEqual(told(self.train({**changes, "train.steps": 4}, run_dir=third)), [])


if __name__ == "__main__":
    unittest.main()
