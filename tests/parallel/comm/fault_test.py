#!/usr/bin/env python3
"""Ranks that die, stop, fail or leave: the job's exit code, its one message, and that it ends.

usage: fault_test.py Case.test_name, with MPIEXEC, FAULT_DRIVER and FAILING_TEST in the environment.
"""
import os
import re
import subprocess
import unittest


class Job:
    """One finished run of fault_driver."""

    def __init__(self, scenario, ranks=3, program="FAULT_DRIVER"):
        command = [os.environ["MPIEXEC"], "-q", "-n", str(ranks), os.environ[program], scenario]
        # What a sanitizer says about its suppressions is not the program's text.
        environment = dict(os.environ)
        for tool in ("LSAN_OPTIONS", "TSAN_OPTIONS"):
            environment[tool] = environment.get(tool, "") + ":print_suppressions=0"
        # The limit is for a hang; every scenario is meant to end by itself.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=environment, timeout=90,
                              check=False)
        self.code = done.returncode
        self.text = done.stdout.decode(errors="replace")
        self.errors = [line for line in self.text.splitlines() if line.startswith("error: ")]
        self.goodbyes = [line for line in self.text.splitlines() if line.startswith("terminated: ")]


PEER1 = r"rank 1 \(host [^ ,]+, pid \d+\)"


class Faults(unittest.TestCase):
    def check(self, job, code, pattern):
        """The exit code, and one message in all that matches."""
        self.assertEqual(job.code, code, job.text)
        self.assertEqual(len(job.errors), 1, job.text)
        self.assertRegex(job.errors[0], pattern)
        self.assertEqual(job.goodbyes, [], job.text)

    def test_fine(self):
        job = Job("fine")
        self.assertEqual((job.code, job.text), (0, ""))

    def test_killed(self):
        job = Job("killed")
        self.assertEqual(job.code, 137, job.text)
        self.assertEqual(job.errors, [], job.text)
        self.assertEqual(len(job.goodbyes), 2, job.text)
        for line in job.goodbyes:
            self.assertRegex(line, r"rank [02] waits for collective #5 \(all_gather layers\.7 on world\), "
                                   r"missing " + PEER1 + "$")

    def test_stopped(self):
        self.check(Job("stopped"), 6,
                   r"no progress in collective #5 \(all_gather layers\.7 on world\) from " + PEER1 +
                   r" for 2 s")

    def test_stopped_of_two(self):
        self.check(Job("stopped", 2), 6, r"no progress in collective #5 .* from " + PEER1)

    def test_too_long(self):
        self.check(Job("too_long"), 6, r"no progress in collective #5 .* from " + PEER1 +
                   r" for 2 s; .*comm\.timeout_s")

    def test_data_error(self):
        for ranks in (2, 4):
            self.check(Job("data_error", ranks), 3, r"corpus\.h5: token 70001 at offset 12$")

    def test_data_error_unseen(self):
        self.check(Job("data_error_unseen"), 3, r"corpus\.h5: token 70001 at offset 12$")

    def test_leaves_early(self):
        job = Job("leaves_early")
        self.assertNotEqual(job.code, 0, job.text)
        self.assertIn("rank 1 leaves", job.text)
        self.assertLessEqual(len(job.errors), 1, job.text)

    def test_never_joins(self):
        job = Job("never_joins")
        if job.code == 1 and not job.errors:
            return  # now and then mpirun notices by itself, within the limit, and ends the job
        self.check(job, 6, r"MPI did not start within 3 s; another process of this job")

    def test_forgets_to_finish(self):
        job = Job("forgets")
        self.assertNotEqual(job.code, 0, job.text)
        self.assertIn("rank 0 is done", job.text)

    def test_calls_differ(self):
        self.check(Job("calls_differ"), 6,
                   r"different collectives on world: rank 0: #5 all_gather layers\.3 4096 bytes; "
                   r"rank 1: #5 all_to_all layers\.3 4096 bytes")

    def test_sizes_differ(self):
        for size in (1000, 16384, 1000000):  # below and above what MPI sends ahead
            self.check(Job(f"size_{size}", 2), 6,
                       r"collective #0 \(all_gather layers\.3 on world\): " + PEER1 +
                       rf" sent 24 bytes where {size} were expected; comm\.check")

    def test_cannot_open(self):
        self.check(Job("cannot_open"), 4, r"error: rank 1 on host \S+: /node/shard-1\.h5: no such file$")

    def test_main_of_the_mpi_tests(self):
        job = Job("--gtest_color=no", 3, "FAILING_TEST")
        self.assertNotEqual(job.code, 0, job.text)
        self.assertIn("1 of 3 ranks failed", job.text)
        self.assertEqual(re.findall(r"rank \d of \d failed:", job.text), ["rank 1 of 3 failed:"])
        self.assertIn("meant to fail", job.text)
        self.assertNotEqual(Job("--gtest_filter=No.Such", 2, "FAILING_TEST").code, 0)

    def test_continued(self):
        job = Job("continued")
        self.assertEqual((job.code, re.sub(r"\s", "", job.text)), (0, ""))


if __name__ == "__main__":
    unittest.main()
