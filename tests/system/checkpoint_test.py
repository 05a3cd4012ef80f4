"""Checkpoints that cannot be written, were cut, changed or lost, are read while they are written, or are
wanted by two runs."""

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import unittest

import k25_testing
from k25_testing import state_hash
from train_testing import TrainTest, rank_pids, rewrite_manifest

# Petabytes on each rank.
FITS_NO_MACHINE = {"train.batch": 2048, "train.micro_batch": 1024, "data.sequence": 1 << 24, "model.ffn": 1 << 14,
                   "data.validation": None}
SMALL = {"train.steps": 4, "checkpoint.every": 2, "checkpoint.keep": 9}
# The shared-memory files of Open MPI would meet the limit too.
NO_SHARED_MEMORY = {"OMPI_MCA_btl": "self,tcp"}


class Damage(TrainTest):
    """Each kind of damage to the newest checkpoint: named in the error, and `auto` falls back."""

    def check(self, damage, *words):
        self.assert_ok(self.train(SMALL, 2))
        good = state_hash(self.run_dir, "step:2")
        shard = self.shard(4, 1)
        damage(shard)
        named = self.train({**SMALL, "train.steps": 5}, 2, args=["--resume", "step:4"])
        self.assert_error(named, 4, *words)
        self.assertEqual(self.saved_steps(), [2, 4])
        self.assertEqual(state_hash(self.run_dir, "step:2"), good)
        shown = k25_testing.run(["inspect", self.run_dir])
        self.assert_error(shown, 4, *words)
        again = self.assert_ok(self.train({**SMALL, "train.steps": 5}, 2))
        self.assertIn("resumed from", again.stdout)
        self.assertIn("at step 2", again.stdout)
        self.assertIn("step-000004 is passed over", again.stderr)
        self.assertEqual([s["step"] for s in k25_testing.steps(self.run_dir)], [1, 2, 3, 4, 5])
        straight = self.folder / "straight"
        self.assert_ok(self.train({**SMALL, "train.steps": 5}, 2, run_dir=straight))
        self.assertEqual(state_hash(self.run_dir), state_hash(straight))

    def test_one_byte_flipped(self):
        def flip(path):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        self.check(flip, "rank-00001.h5", "expected SHA-256")

    def test_one_byte_short(self):
        self.check(lambda p: os.truncate(p, p.stat().st_size - 1), "rank-00001.h5", "expected",
                   "truncated or unfinished")

    def test_cut_to_96_bytes(self):
        self.check(lambda p: os.truncate(p, 96), "rank-00001.h5", "has 96", "truncated or unfinished")

    def test_empty(self):
        self.check(lambda p: os.truncate(p, 0), "rank-00001.h5", "has 0", "truncated or unfinished")

    def test_text_instead(self):
        self.check(lambda p: p.write_text("not a checkpoint\n"), "rank-00001.h5", "bytes")

    def test_text_of_the_same_size(self):
        self.check(lambda p: p.write_bytes(b"x" * p.stat().st_size), "rank-00001.h5", "SHA-256")

    def test_missing(self):
        self.check(os.remove, "rank-00001.h5", "No such file")

    def test_a_folder_instead(self):
        def replace(path):
            path.unlink()
            path.mkdir()
        self.check(replace, "rank-00001.h5", "directory")

    def test_manifest_missing(self):
        self.check(lambda p: os.remove(p.parent / "manifest.json"), "step-000004", "unfinished")

    def test_manifest_cut(self):
        self.check(lambda p: os.truncate(p.parent / "manifest.json", 200), "manifest.json", "damaged")

    def change_manifest(self, change):
        def damage(shard):
            path = shard.parent / "manifest.json"
            manifest = json.loads(path.read_text())
            change(manifest)
            path.write_text(json.dumps(manifest))
        return damage

    def test_counters_in_the_manifest(self):
        def later(manifest):
            manifest["state"]["step"] = 5
        self.check(self.change_manifest(later), "step-000004/manifest.json", "content has SHA-256",
                   "changed after it was written")

    def test_position_in_the_manifest(self):
        def elsewhere(manifest):
            manifest["state"]["mixture"]["next_sample"] += 1
        self.check(self.change_manifest(elsewhere), "step-000004/manifest.json", "content has SHA-256")

    def test_manifest_without_its_digest(self):
        self.check(self.change_manifest(lambda m: m.pop("sha256")), "manifest.json", "'sha256'", "older k25")

    def test_another_step_than_the_folder_says(self):
        def later(shard):
            rewrite_manifest(shard.parent, lambda m: m["state"].update(step=5))
        self.check(later, "step-000004", "says step 5")

    def shard_of_another_model(self, changes):
        """Damage: the file of a run of another model, under a manifest with true digests (A51)."""
        def damage(shard):
            self.assert_ok(self.train({**SMALL, **changes}, 2, run_dir=self.folder / "other"))
            shutil.copy(self.shard(4, 1, self.folder / "other"), shard)
            rewrite_manifest(shard.parent)
        return damage

    def test_dataset_missing(self):
        self.check(self.shard_of_another_model({"model.layers": 1}), "rank-00001.h5",
                   "dataset /units/layers.1", "is missing")

    def test_dataset_of_another_length(self):
        self.check(self.shard_of_another_model({"model.hidden": 32, "model.ffn": 512}), "rank-00001.h5",
                   "dataset /units/", "bytes, the manifest says")

    def test_a_rewritten_manifest_alone_is_no_damage(self):
        # What makes the two tests above tests of what they name.
        self.assert_ok(self.train(SMALL, 2))
        before = state_hash(self.run_dir)
        rewrite_manifest(self.shard(4).parent)
        self.assertEqual(state_hash(self.run_dir), before)

    def test_only_broken_ones(self):
        self.assert_ok(self.train({"train.steps": 2}, 2))
        os.truncate(self.shard(2, 0), 100)
        result = self.train({}, 2)
        self.assert_error(result, 4, "holds only broken checkpoints", "rank-00000.h5", "--resume none")

    def test_checkpoints_is_no_folder(self):
        self.run_dir.mkdir()
        (self.run_dir / "checkpoints").write_text("x")
        self.assert_error(self.train({}, 2), 4, self.run_dir, "no k25 run (checkpoints")
        (self.run_dir / "lock").write_text("")
        self.assert_error(self.train({}, 2), 4, self.run_dir / "checkpoints",
                          "is no folder, but a file, and a run keeps a folder there")

    def test_a_step_that_is_no_folder(self):
        self.assert_ok(self.train({"train.steps": 2}))
        path = self.run_dir / "checkpoints" / "step-000012"
        path.touch()
        told = f"{path}: is no folder but a file, so no checkpoint; remove it, and name another checkpoint"
        for args in (["train", self.config_path, "--resume", "step:12"], ["inspect", path],
                     ["train", self.config_path, "--resume", path],
                     *([command, self.run_dir, "--checkpoint", "step:12"] for command in ("inspect", "eval", "sample"))):
            self.assert_error(k25_testing.run(args), 4, told)
        self.assert_error(k25_testing.run(["train", self.config_path, "--resume", self.config_path]), 4,
                          f"{self.config_path}: is no folder but a file")
        shown = self.assert_ok(k25_testing.run(["inspect", self.run_dir])).stdout
        self.assertIn(f"step 12: broken: {told}", shown)
        self.assert_ok(self.train({"train.steps": 3}))  # auto goes on from step 2

    def test_a_damaged_one_names_the_others(self):
        self.assert_ok(self.train({"train.steps": 6, "checkpoint.every": 2, "checkpoint.keep": 5}, 2))
        os.truncate(self.shard(6), 100)
        run, folder = self.run_dir, self.shard(6).parent
        told = f"checkpoints of '{run}': --checkpoint step:2, step:4 (k25 inspect {run} says which are whole)"
        for args in (["sample", run, "--checkpoint", "latest"], ["eval", run, "--checkpoint", "step:6"], ["eval", folder],
                     ["inspect", run], ["inspect", folder]):
            for ranks in (None,) if args[0] == "inspect" else (None, 2):
                self.assert_error(k25_testing.run(args, ranks), 4, f"{folder}/rank-00000.h5", told)
        for ranks in (None, 2):
            self.assert_error(k25_testing.run(["train", self.config_path, "--resume", "step:6"], ranks), 4,
                              told.replace("--checkpoint", "--resume"))
        for step in (2, 4):
            shutil.rmtree(self.shard(step).parent)
        self.assert_error(k25_testing.run(["eval", folder]), 4, f"; '{run}' has no other checkpoint")

    def test_a_run_too_large_names_what_makes_it_smaller(self):
        self.assert_error(self.train(FITS_NO_MACHINE), 2,
                          "Use more hosts, a smaller train.micro_batch or data.sequence, zero.reshard_after")

    def test_tensorboard_is_no_folder(self):
        self.run_dir.mkdir()
        (self.run_dir / "lock").touch()
        (self.run_dir / "tensorboard").write_text("x")
        for ranks in (None, 2):
            self.assert_error(self.train({}, ranks), 4, self.run_dir / "tensorboard",
                              "is no folder, but a file, and a run keeps a folder there; remove it, or choose another")
        self.assertEqual((self.run_dir / "tensorboard").read_text(), "x")

    def test_run_dir_below_a_file(self):
        for folder in (self.config_path, f"{self.config_path}/"):
            result = self.train(run_dir=folder)
            self.assert_error(result, 4, f"run.dir: cannot create '{folder}': File exists; choose")
        self.assert_error(self.train(run_dir=self.config_path / "x"), 4,
                          f"run.dir: cannot create '{self.config_path / 'x'}': '{self.config_path}': File exists")


class NoSpace(TrainTest):
    """A file size limit of one rank stands for a full disk."""

    WIDE = {**SMALL, "model.hidden": 64, "model.ffn": 128, "data.validation": None}

    def limited(self, changes, bytes_allowed, args=()):
        path = self.write_config({**self.WIDE, **changes})
        command = ["train", path, *args]
        return self.run_unlike([(1, [], [], command),
                                (1, [], ["prlimit", f"--fsize={bytes_allowed}", "--"], command)],
                               env=NO_SHARED_MEMORY)

    def test_stop(self):
        self.assert_ok(self.train({**self.WIDE, "train.steps": 2}, 2))
        before = state_hash(self.run_dir)
        for asynchronous in (True, False):
            result = self.limited({"train.steps": 6, "checkpoint.asynchronous": asynchronous}, 65536)
            self.assert_error(result, 4, "step 4 was not saved", "rank 1 on host", "rank-00001.h5",
                              "File too large")
            self.assertEqual(sorted(os.listdir(self.run_dir / "checkpoints")), ["step-000002"])
            self.assertEqual((self.run_dir / "latest").read_text(), "step-000002\n")
            self.assertEqual(state_hash(self.run_dir), before)

    def test_warn_goes_on_and_the_end_is_no_success(self):
        self.assert_ok(self.train({**self.WIDE, "train.steps": 2}, 2))
        result = self.limited({"train.steps": 6, "checkpoint.on_error": "warn"}, 65536)
        self.assert_error(result, 4, "its last state could not be saved")
        warned = [w for w in result.warnings if "was not saved" in w]
        self.assertEqual(len(warned), 2, str(result))  # steps 4 and 6, by one rank
        self.assertEqual(self.steps_done(), 6)
        self.assertEqual(sorted(os.listdir(self.run_dir / "checkpoints")), ["step-000002"])

    def test_alone(self):
        result = self.train({**self.WIDE, "log.tensorboard": False}, file_limit=65536)
        self.assert_error(result, 4, "step 2 was not saved", "File too large")
        self.assertEqual(os.listdir(self.run_dir / "checkpoints"), [])
        self.assert_ok(self.train(self.WIDE))

    def test_metrics(self):
        # config.yaml fits, and lines of the first steps. No checkpoint fits, and none is due.
        result = self.train({"train.steps": 40, "log.tensorboard": False, "data.validation": None},
                            file_limit=6144)
        self.assert_error(result, 4, "metrics.jsonl", "File too large")

    def test_metrics_of_a_job(self):
        path = self.write_config({"train.steps": 40, "log.tensorboard": False, "data.validation": None,
                                  "train.batch": 12})
        result = self.run_unlike([(1, [], ["prlimit", "--fsize=6144", "--"], ["train", path]),
                                  (2, [], [], ["train", path])], env=NO_SHARED_MEMORY)
        self.assert_error(result, 4, "metrics.jsonl", "File too large")


class Elsewhere(TrainTest):
    """Ranks that do not see the same files, as on hosts without a shared disk."""

    def folders(self):
        names = [self.folder / name for name in ("here", "there")]
        for name in names:
            name.mkdir()
        return names

    def test_run_directory(self):
        here, there = self.folders()
        path = self.write_config({"run.dir": "run", "train.batch": 12})
        result = self.run_unlike([(2, ["-wdir", here], [], ["train", path]),
                                  (1, ["-wdir", there], [], ["train", path])])
        self.assert_error(result, 4, "rank 2 on host", there / "run" / "lock", "share")
        self.assertEqual(list(there.iterdir()), [])

    def test_checkpoint_to_resume_from(self):
        here, there = self.folders()
        self.assert_ok(self.train({"train.steps": 2, "train.batch": 12}, 2))
        shutil.copytree(self.run_dir, here / "run")
        path = self.write_config({"train.batch": 12})
        result = self.run_unlike([(2, ["-wdir", here], [], ["train", path, "--resume", "run"]),
                                  (1, ["-wdir", there], [], ["train", path, "--resume", "run"])])
        self.assert_error(result, 4, "rank 2 on host", "run/checkpoints/step-000002")

    def test_corpus(self):
        here, there = self.folders()
        shutil.copytree(k25_testing.corpus().parent, here / "corpus")
        path = self.write_config({"train.batch": 12, "data.train": "corpus/manifest.json"})
        result = self.run_unlike([(2, ["-wdir", here], [], ["train", path]),
                                  (1, ["-wdir", there], [], ["train", path])])
        self.assert_error(result, 3, "rank 2 on host", "corpus/manifest.json")


class TwoRuns(TrainTest):
    def test_second_run_is_refused(self):
        process = self.start_train({"train.steps": 100000}, 2)
        self.wait_for(lambda: self.steps_done() > 0, process)
        owner = rank_pids(str(self.folder))[0]
        result = k25_testing.run(["train", self.config_path], 2)
        self.assertEqual(result.code, 4, str(result))
        self.assertEqual(len(result.errors), 1, str(result))
        self.assertIn(f"directory in use by pid {owner} on host {socket.gethostname()}", result.stderr)
        self.assertIsNone(process.poll())
        os.killpg(process.pid, signal.SIGKILL)
        k25_testing.finish(process)
        self.assert_no_process_left()
        # The lock of a killed run does not bind.
        self.assert_ok(self.train({"train.steps": 1, "train.resume": "none"}, 2))


def exchange(one, other):
    """Each name has the other's folder at once: at no moment is there none."""
    at_cwd, rename_exchange = -100, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_cwd, bytes(one), at_cwd, bytes(other), rename_exchange) != 0:
        raise OSError(ctypes.get_errno(), "renameat2", str(one))


class LostDirectory(TrainTest):
    """The run directory moved, removed or replaced under a run: noticed, and nothing foreign is written to."""

    LONG = {"train.steps": 100000, "checkpoint.every": 3, "data.validation": None}

    def check(self, change, ranks=2, changes=None):
        process = self.start_train({**self.LONG, **(changes or {})}, ranks)
        self.wait_for(lambda: self.steps_done() >= 4 and self.saved_steps(), process)
        change()
        result = k25_testing.finish(process, 30)
        self.assertEqual(result.code, 4, str(result))
        self.assertEqual(len(result.errors), 1, str(result))
        self.assertIn("moved, removed or replaced", result.stderr)
        self.assertIn(str(self.run_dir / "lock"), result.stderr)
        self.assert_no_process_left()
        return result

    def test_moved(self):
        moved = self.folder / "moved"
        for ranks in (2, None):
            result = self.check(lambda: os.rename(self.run_dir, moved), ranks)
            self.assertIn("is gone", result.stderr)
            self.assertFalse(self.run_dir.exists())
            # What is there now is whole, and the run goes on from where it was moved to.
            last = self.saved_steps(moved)[-1]
            again = self.assert_ok(self.train({**self.LONG, "train.steps": last + 1}, ranks, run_dir=moved))
            self.assertIn(f"at step {last}", again.stdout)
            self.assertEqual(list((moved / "checkpoints").glob("*.tmp")), [])
            shutil.rmtree(moved)

    def test_removed(self):
        def remove():
            os.rename(self.run_dir, self.folder / "x")
            shutil.rmtree(self.folder / "x")
        self.check(remove, changes={"checkpoint.on_error": "warn"})
        self.assertFalse(self.run_dir.exists())

    def test_replaced_by_another_run(self):
        other = self.folder / "other"
        self.assert_ok(self.train({"train.steps": 2}, run_dir=other))
        before = k25_testing.tree(other)

        result = self.check(lambda: exchange(other, self.run_dir), changes={"checkpoint.on_error": "warn"})
        self.assertIn("is another file", result.stderr)
        self.assertEqual(k25_testing.tree(self.run_dir), before)

    def test_lock_removed(self):
        self.check(lambda: os.remove(self.run_dir / "lock"))


class Leftovers(TrainTest):
    def test_of_a_killed_run_go_at_the_next_start(self):
        self.assert_ok(self.train({"train.steps": 2}, 2))
        unfinished = self.run_dir / "checkpoints" / "step-000009.tmp"
        unfinished.mkdir()
        ours = [self.run_dir / ".latest.partial-0123456789abcdef", unfinished / "rank-00000.h5"]
        users = [self.run_dir / ".latest.partial-mine", self.run_dir / "checkpoints" / "notes.tmp"]
        for path in ours + users:
            path.write_text("x")
        self.assertIn("nothing to do", self.assert_ok(self.train({"train.steps": 2}, 2)).stdout)
        self.assertEqual([p for p in ours + [unfinished] if p.exists()], [])
        self.assertEqual([p for p in users if not p.exists()], [])
        self.assert_ok(self.train({"train.steps": 3}, 2))  # and a save does not take them either
        self.assertEqual([p for p in users if not p.exists()], [])

    def test_of_a_start_that_failed_are_none(self):
        nested = self.folder / "a" / "b" / "run"
        bad = {"corpus": ({"data.train": str(self.folder / "nowhere.json")}, 3, "nowhere.json"),
               "memory": (FITS_NO_MACHINE, 2, "bytes on each rank, and"),
               "resume": ({"train.resume": "step:3"}, 4, "step:3")}
        for name, (changes, code, words) in bad.items():
            for run_dir in (nested, self.folder / "run"):
                result = self.train(changes, 2, run_dir=run_dir)
                self.assertEqual((result.code, len(result.errors)), (code, 1), f"{name}: {result}")
                self.assertIn(words, result.errors[0])
                self.assertFalse((self.folder / "a").exists() or run_dir.exists(), name)
        self.run_dir.mkdir()
        self.assert_error(self.train(bad["corpus"][0], 2), 3)
        self.assertEqual(list(self.run_dir.iterdir()), [])
        self.assert_ok(self.train({"train.steps": 1}))
        before = k25_testing.tree(self.run_dir)
        self.assert_error(self.train(bad["corpus"][0], 2), 3)
        self.assertEqual(set(k25_testing.tree(self.run_dir)), set(before))


class Readers(TrainTest):
    def test_inspect_during_fifty_saves_sees_whole_checkpoints_only(self):
        process = self.start_train({"train.steps": 50, "checkpoint.every": 1, "checkpoint.keep": 1}, 2)
        self.wait_for(lambda: (self.run_dir / "latest").exists(), process)
        seen = []
        while process.poll() is None:
            shown = self.assert_ok(k25_testing.run(["inspect", self.run_dir]))
            self.assertIn("(verified)", shown.stdout)
            self.assertNotIn("broken", shown.stdout)
            seen.append(int(re.search(r"^  step (\d+)$", shown.stdout, re.M).group(1)))
        self.assert_ok(k25_testing.finish(process))
        self.assertEqual(seen, sorted(seen))
        self.assertEqual(self.saved_steps()[-1], 50)
        self.assertEqual([p.name for p in (self.run_dir / "checkpoints").glob("*.tmp")], [])


class Retention(TrainTest):
    def test_newest_and_best_are_kept(self):
        # The learning rate explodes after a while, so the best step is an early one.
        self.assert_ok(self.train({"train.steps": 12, "checkpoint.every": 3, "eval.every": 2,
                                   "checkpoint.keep": 2, "optim.lr": 0.5}, 2))
        evals = {m["step"]: m["val_loss"] for m in k25_testing.metrics(self.run_dir)
                 if m.get("event") == "eval" and m["step"] > 0}
        best = min(evals, key=evals.get)
        self.assertEqual((self.run_dir / "best").read_text(), f"step-{best:06}\n")
        self.assertEqual((self.run_dir / "latest").read_text(), "step-000012\n")
        # Saved: 3, 6, 9, 12 and every step that was best when it was measured.
        kept = self.saved_steps()
        self.assertEqual(kept[-1], 12)
        self.assertIn(best, kept)
        self.assertLessEqual(len(kept), 3)
        shown = k25_testing.run(["inspect", self.run_dir, "--checkpoint", "best"])
        self.assertIn(f"best step {best} (validation loss {evals[best]:.4f})", shown.stdout)


if __name__ == "__main__":
    unittest.main()
