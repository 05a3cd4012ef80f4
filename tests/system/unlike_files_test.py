"""Runs whose files may not be read, are no files, go away, or say what no run can have written."""

import os
import pathlib
import shutil
import subprocess
import time
import unittest

import k25_testing
from k25_testing import K25
from train_testing import TrainTest, rewrite_manifest


def nobody():
    """For subprocess: the modes of files do not bind root."""
    return {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}


class UnlikeFiles(TrainTest):
    """Files that may not be read, are none, or say what no run can have written."""

    # The build, with the tests' corpora beside it, may lie where only root goes.
    def reachable_corpus(self):
        shutil.copytree(pathlib.Path(k25_testing.corpus()).parent, self.folder / "corpus")
        return self.folder / "corpus" / "manifest.json"

    def give_to_nobody(self):
        """The run, and the config to read."""
        if os.geteuid() == 0:
            for path in [self.run_dir, *self.run_dir.rglob("*")]:
                os.chown(path, 65534, 65534)
        self.config_path.chmod(0o644)

    def as_nobody(self, *args):
        self.folder.chmod(0o777)
        program = self.folder / "k25"
        if not program.exists():
            shutil.copy(K25, program)
        begin = time.monotonic()
        process = subprocess.Popen([program, *map(str, args)], env=k25_testing.environment(), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True, **nobody())
        return k25_testing.finish(process, 30, begin)

    def test_doctor_warns_of_run_folders_that_are_closed(self):
        closed = self.folder / "closed"
        (closed / "in").mkdir(parents=True)
        for mode, path, text in ((0o000, closed / "in", f"{closed / 'in'} cannot be looked at: Permission denied"),
                                 (0o000, closed, f"{closed} cannot be read and written by this user: Permission denied"),
                                 (0o555, closed, f"{closed} cannot be read and written by this user: Permission denied"),
                                 (0o555, closed / "new", f"{closed} cannot be read and written by this user")):
            closed.chmod(mode)
            shown = self.assert_ok(self.as_nobody("doctor", "--json", "--run-dir", path)).stdout
            finding, = (f for f in k25_testing.parse_json(shown)["findings"] if f["topic"] == "run dir")
            self.assertEqual(finding["severity"], "warning")
            self.assertTrue(finding["found"].startswith(text), finding)
            self.assertIn("no run can begin there", finding["consequence"])
            self.assertIn("chmod", finding["mend"])
        closed.chmod(0o755)

    def test_a_run_that_may_not_be_read(self):
        manifest = self.reachable_corpus()
        self.assert_ok(self.train({"train.steps": 1}, manifest=manifest))
        closed = self.folder / "closed"
        closed.mkdir()
        shutil.move(self.run_dir, closed / "run")
        self.write_config({"train.steps": 2, "run.dir": str(self.folder / "new")}, manifest)
        self.config_path.chmod(0o644)
        os.symlink(closed / "run", self.run_dir)
        for mode in (0o600, 0o000):
            closed.chmod(mode)
            for args in (("inspect", self.run_dir), ("eval", self.run_dir), ("sample", self.run_dir)):
                self.assert_error(self.as_nobody(*args), 2, self.run_dir, "Permission denied")
        closed.chmod(0o755)
        (closed / "run").chmod(0o600)
        for args in (("inspect", self.run_dir), ("eval", self.run_dir), ("sample", self.run_dir),
                     ("train", self.config_path, "--resume", self.run_dir),
                     ("train", self.config_path, "--set", f"train.init_from={self.run_dir}"),
                     ("train", self.config_path, "--set", f"run.dir={self.run_dir}")):
            result = self.assert_error(self.as_nobody(*args), 4, self.run_dir, "Permission denied")
            self.assertNotIn("filesystem error", result.stderr)
            self.assertNotIn("no run directory", result.stderr)
        (closed / "run").chmod(0o755)

    def test_a_checkpoint_that_may_not_be_removed(self):
        changes = {"train.steps": 4, "checkpoint.every": 2, "checkpoint.keep": 9, "optim.schedule.kind": "constant"}
        manifest = self.reachable_corpus()
        self.assert_ok(self.train(changes, manifest=manifest))
        self.give_to_nobody()
        newest = self.run_dir / "checkpoints" / "step-000004"
        newest.chmod(0)
        result = self.as_nobody("train", self.config_path)
        self.assert_ok(result)
        self.assertIn(f"{newest} is passed over: {newest}: k25 may not read it: Permission denied", result.stderr)
        self.assertIn(f"{newest} lies after the step resumed from and is now step-000004.set-aside-1", result.stderr)
        self.assertEqual(self.saved_steps(), [2, 4])
        oldest = newest.parent / "step-000002"
        oldest.chmod(0o500)
        less = ("--set", "checkpoint.keep=1")
        again = self.as_nobody("train", self.config_path, "--set", "train.steps=6", *less)
        self.assert_ok(again)
        left = newest.parent / "step-000002.removed.tmp"
        self.assertIn(f"{left}: is no longer needed and cannot be removed: Permission denied; remove it by hand",
                      again.stderr)
        self.assertEqual(self.saved_steps(), [4, 6])
        left.chmod(0o755)
        self.assertNotIn("removed", self.assert_ok(self.train({**changes, "train.steps": 7}, manifest=manifest)).stderr)
        self.assertFalse(left.exists())

    def test_checkpoints_that_cannot_be_saved_are_told_at_the_start(self):
        manifest = self.reachable_corpus()
        self.assert_ok(self.train({"train.steps": 2}, manifest=manifest))
        self.give_to_nobody()
        checkpoints = self.run_dir / "checkpoints"
        checkpoints.chmod(0o555)
        result = self.as_nobody("train", self.config_path, "--set", "train.steps=900")
        self.assert_error(result, 4, checkpoints, "cannot save checkpoints there: Permission denied", "permissions")
        self.assertEqual(self.steps_done(), 2)
        checkpoints.chmod(0o755)

    def test_no_checkpoint_that_may_be_read(self):
        manifest = self.reachable_corpus()
        self.assert_ok(self.train({"train.steps": 2}, manifest=manifest))
        self.give_to_nobody()
        shard = self.shard(2)
        shard.chmod(0)
        result = self.as_nobody("train", self.config_path, "--set", "train.steps=3")
        self.assert_error(result, 4, "checkpoints that this user may not read", shard, "Permission denied", "chmod")
        self.assertNotIn("broken", result.stderr)
        self.assertNotIn("start over", result.stderr)
        self.assertEqual(self.saved_steps(), [2])
        shard.chmod(0o644)
        self.assertIn("at step 2", self.assert_ok(self.as_nobody("train", self.config_path, "--set",
                                                                 "train.steps=3")).stdout)

    def test_a_pipe_in_the_place_of_a_file(self):
        self.assert_ok(self.train({"train.steps": 1}))
        for name in ("metrics.jsonl", "lock", "config.yaml", "latest"):
            path = self.run_dir / name
            content = path.read_bytes()
            path.unlink()
            os.mkfifo(path)
            for args in ((), ("--resume", "none")):
                self.assert_error(self.train({"train.steps": 2}, 2, args=args), 4, path, "no regular file, but a pipe")
            path.unlink()
            path.write_bytes(content)
        self.assertEqual(self.saved_steps(), [1])

    def test_metrics_removed_during_a_run(self):
        long = {"train.steps": 100000, "data.validation": None, "log.tensorboard": False}
        for ranks, change in ((2, os.remove), (None, lambda path: os.rename(path, self.folder / "m"))):
            process = self.start_train({**long, "train.resume": "none"}, ranks)
            self.wait_for(lambda: self.steps_done() >= 2, process)
            change(self.run_dir / "metrics.jsonl")
            self.assert_error(k25_testing.finish(process, 30), 4,
                              self.run_dir / "metrics.jsonl", "is gone: it was moved, removed or replaced")
            self.assertFalse((self.run_dir / "metrics.jsonl").exists())

    def test_counters_out_of_range(self):
        self.assert_ok(self.train({"train.steps": 2}))
        folder = self.run_dir / "checkpoints" / "step-000002"
        good = (folder / "manifest.json").read_bytes()
        cases = {"label_tokens": -1, "mixture.next_sample": -5, "mixture.consumed": [-1], "policy.updates": 3,
                 "policy.beta1_product": 1.5, "best_step": 3, "slots": -1, "batch": 2.5, "policy.skipped": 1 << 63}
        for key, value in cases.items():
            def change(manifest):
                *sections, name = key.split(".")
                node = manifest["state"]
                for section in sections:
                    node = node[section]
                node[name] = value
            rewrite_manifest(folder, change)
            words = f"'{key}" + ("[0]' is -1" if isinstance(value, list) else f"' is {value}") + ", expected"
            for shown in (self.train({"train.steps": 3}, 2), k25_testing.run(["inspect", folder])):
                self.assert_error(shown, 4, words, folder / "manifest.json")
            (folder / "manifest.json").write_bytes(good)

    def test_a_manifest_that_is_none(self):
        self.assert_ok(self.train({"train.steps": 1}))
        folder = self.run_dir / "checkpoints" / "step-000001"
        for text in ("", "[]", "null", "{}", "\x00\xff", '{"format": 1}'):
            (folder / "manifest.json").write_bytes(text.encode("latin-1"))
            result = self.assert_error(k25_testing.run(["inspect", folder]), 4, folder / "manifest.json")
            self.assertNotIn("json.exception", result.stderr)


if __name__ == "__main__":
    unittest.main()
