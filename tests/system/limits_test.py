"""Runs under a limit on their address space: they work, or say what they lack, and nothing hinders the next."""

import resource
import subprocess
import time
import unittest

import k25_testing
from k25_testing import K25, K25Test

MIB = 1 << 20
NEXT = {"train.steps": 2, "train.batch": 2}


class Limits(K25Test):
    def under(self, limit, args):
        """With `limit` bytes of addresses; None where not even the loader gets on with them."""
        begin = time.monotonic()
        process = subprocess.Popen([K25, *map(str, args)], env=k25_testing.environment(), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True,
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        result = k25_testing.finish(process, 60, begin)
        return None if result.code == 127 and "shared" in result.stderr else result

    def scan(self, args, before=lambda: None):
        """From where the loader fails to where all works: code 0, or 2 with the reason."""
        ends = set()
        for limit in range(24 * MIB, 288 * MIB, 4 * MIB):
            before()
            result = self.under(limit, args)
            if result is None:
                continue
            ends.add(result.code)
            if result.code == 0:
                continue
            self.assert_error(result, 2, "ulimit -v")
            self.assertRegex(result.errors[0], "out of memory|no thread can be started|of .* threads")
        self.assertEqual(ends, {0, 2}, "the scan must meet both ends")

    def test_train(self):
        # The same directory throughout: what a failed start leaves must not hinder the next.
        self.write_config({**NEXT, "checkpoint.every": 1})
        self.scan(["train", self.config_path, "--resume", "none"])

    def test_commands_on_a_run(self):
        self.assert_ok(self.train(NEXT))
        for args in (["inspect", self.run_dir], ["sample", self.run_dir, "--prompt", "a", "--tokens", "2"],
                     ["eval", self.run_dir]):
            with self.subTest(args[0]):
                self.scan(args)

    def test_bench(self):
        self.write_config(NEXT)
        self.scan(["bench", "step", "--config", self.config_path, "--steps", "1", "--warmup", "0"])

    def test_prepare(self):
        folders = k25_testing.write_sources(self.folder / "in", {"law": {"a.txt": k25_testing.words(200, 1)}})
        counts = iter(range(10**6))
        out = self.folder / "out"

        def fresh():
            if out.exists():
                out.rename(self.folder / f"out-{next(counts)}")

        self.scan(["prepare", *folders, "--out", out, "--vocab", "300"], fresh)


if __name__ == "__main__":
    unittest.main()
