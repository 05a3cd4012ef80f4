"""offload.nvme: moments in a file of a local disk. Nothing changes but where they are; a disk that fails is told."""
import os
import signal
import unittest

import k25_testing
from k25_testing import state_hash
from train_testing import ORDERED, TrainTest


class NvmeTest(TrainTest):
    def setUp(self):
        super().setUp()
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        self.nvme = {"offload.optimizer": "host", "offload.nvme": str(self.disk)}

    def test_a_run_goes_on_with_and_without_it(self):
        steps = {"train.steps": 6, "checkpoint.every": 3}
        plain = self.ordered(steps, 2, name="plain")
        # From the disk to memory, and from two ranks to one.
        self.ordered({**steps, "train.steps": 3, **self.nvme}, 2, name="leaves")
        self.assertEqual(state_hash(self.ordered(steps, 1, name="leaves")), state_hash(plain))
        # And the other way.
        comes = self.ordered({**steps, "train.steps": 3}, 2, name="comes")
        result = self.assert_ok(self.train({**ORDERED, **steps, **self.nvme}, 1, run_dir=comes))
        self.assertEqual(state_hash(comes), state_hash(plain))
        self.assertEqual(result.warnings, [])  # it saves memory on the CPU too
        self.assertRegex(result.stdout, rf"offload\.nvme: {self.disk}: \d+ bytes of moments a rank, "
                                        r"(io_uring|threads), (past|through) the page cache")
        self.assertEqual(list(self.disk.iterdir()), [])

    def test_nothing_is_left_of_a_killed_run(self):
        process = self.start_train({"train.steps": 100000, **self.nvme}, 2)
        self.wait_for(lambda: self.steps_done() >= 2, process)
        self.assertEqual(list(self.disk.iterdir()), [])
        os.killpg(process.pid, signal.SIGKILL)
        k25_testing.finish(process, 30)
        self.assertEqual(list(self.disk.iterdir()), [])

    def test_a_folder_that_cannot_hold_it(self):
        self.write_config()
        for folder, why in ((self.folder / "none", "No such file or directory"), (self.config_path, "Not a directory")):
            result = self.train({**self.nvme, "offload.nvme": str(folder)}, 2)
            self.assert_error(result, 2, f"offload.nvme: {folder}: cannot hold", why, "give a folder of a local disk")
            self.assertRegex(result.stderr, r"cfg\.yaml:\d+:\d+: offload\.nvme: ")
            self.assertFalse((self.run_dir / "checkpoints").exists())

    def test_a_disk_that_fails_ends_the_run_and_it_goes_on_from_its_checkpoint(self):
        plain = self.ordered({"train.steps": 6}, 1, name="plain")
        self.ordered({"train.steps": 4, **self.nvme}, 1, name="run")
        process = self.start_train({**ORDERED, "train.steps": 100000, **self.nvme}, None)
        self.wait_for(lambda: self.steps_done() >= 6, process)
        k25_testing.limit_files(str(self.folder), 65536)
        result = k25_testing.finish(process, 60)
        self.assert_error(result, 4, f"{self.disk}: cannot write", "File too large")
        again = self.ordered({"train.steps": 6, **self.nvme}, 1, name="run")
        self.assertEqual(state_hash(again), state_hash(plain))

    def test_without_an_offloaded_optimizer_it_has_no_effect(self):
        result = self.assert_ok(self.train({"train.steps": 1, "offload.nvme": str(self.disk)}))
        self.assertIn("offload.nvme", "\n".join(result.warnings))


if __name__ == "__main__":
    unittest.main()
