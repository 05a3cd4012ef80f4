"""k25 bench: what it measures stands in its table; no speed is asserted."""
import json
import unittest

import k25_testing as kt

SMALL_OP = ["--device", "cpu", "--rows", "64", "--sequence", "32", "--hidden", "64", "--heads", "2", "--kv-heads", "1",
            "--head-dim", "32", "--ffn", "96", "--vocab", "500"]
OPS = ["all_gather", "all_to_all", "reduce_scatter", "all_reduce_small", "broadcast", "barrier"]


def rows(result):
    """The lines below the head of the first table, cut into words."""
    return [line.split() for line in result.stdout.splitlines()[3:]]


def ceilings(folder, **changes):
    path = folder / "ceilings.json"
    path.write_text(json.dumps({
        "format": "k25 ceilings 1", "device": "cpu", "ranks": 2, "memory_bytes": None, "precision": "fp32",
        "copy_gb_per_s": 10, "gemm_tflop_per_s": 1, "attention_forward_tflop_per_s": 1,
        "attention_backward_tflop_per_s": 1, "all_gather_gb_per_s": 2, "reduce_scatter_gb_per_s": 4,
        "triad_gb_per_s": 8, **changes}))
    return path


def assert_ratio(test, ratio, floor, micro):
    """`ratio` is rounded to three decimals, the two times to four significant digits."""
    want = float(floor) / float(micro)
    test.assertAlmostEqual(float(ratio), want, delta=0.0005 + 0.0011 * want)


class CommTest(kt.K25Test):
    def comm(self, *args, ranks=2):
        return kt.run(["bench", "comm", "--device", "cpu", *args], ranks)

    def test_every_collective_at_every_size(self):
        for ranks in (1, 2, 3):
            result = self.assert_ok(self.comm("--max-bytes", "262144", ranks=ranks))
            self.assertTrue(result.stdout.startswith("1 rank on cpu" if ranks == 1 else f"{ranks} ranks on cpu"), result)
            self.assertIn("bus bandwidth of nccl-tests", result.stdout)
            table = rows(result)
            for op in OPS:
                mine = [row for row in table if row[0] == op]
                # 4, 16, 64 and 256 KiB; few numbers up to 64 KiB.
                self.assertEqual(len(mine), {"barrier": 1, "all_reduce_small": 3}.get(op, 4), result)
                for row in mine:
                    self.assertGreater(float(row[2]), 0, row)
                    self.assertEqual(row[4:], ["n/a", "n/a"], row)
                    if ranks == 1 or op == "barrier":
                        self.assertEqual(row[3], "n/a", row)
                    else:
                        self.assertGreater(float(row[3]), 0, row)

    def test_rates_follow_the_convention_and_floors_the_ceilings(self):
        result = self.assert_ok(self.comm("--min-bytes", "65536", "--max-bytes", "65536", "--ceilings",
                                          ceilings(self.folder)))
        wire = {"all_gather": 0.5, "all_to_all": 0.5, "reduce_scatter": 0.5, "all_reduce_small": 1.0, "broadcast": 1.0}
        rate = {"all_gather": 2, "all_to_all": 2, "reduce_scatter": 4, "broadcast": 2}
        for op, size, micro, gb, floor, ratio in rows(result):
            if op == "barrier":
                self.assertEqual((size, gb, floor, ratio), ("-", "n/a", "n/a", "n/a"))
                continue
            moved = 65536 * wire[op]
            self.assertEqual(size, "65536")
            self.assertAlmostEqual(float(gb) * float(micro) * 1e3 / moved, 1, delta=0.01)
            if op in rate:
                self.assertAlmostEqual(float(floor) * rate[op] * 1e3 / moved, 1, delta=0.01)
                assert_ratio(self, ratio, floor, micro)
            else:
                self.assertEqual((floor, ratio), ("n/a", "n/a"))

    def test_named_collectives_and_uneven_sizes(self):
        result = self.assert_ok(self.comm("--op", "broadcast", "--op", "all_gather", "--min-bytes", "10",
                                          "--max-bytes", "50", ranks=3))
        self.assertEqual([row[:2] for row in rows(result)],
                         [["broadcast", "10"], ["broadcast", "40"], ["all_gather", "12"], ["all_gather", "36"]])

    def test_bad_options(self):
        for args, part in ((["--op", "gather"], "gather"), (["--min-bytes", "0"], "--min-bytes: expected an integer"),
                           (["--min-bytes", "64", "--max-bytes", "32"], "--min-bytes 64 is above --max-bytes 32"),
                           (["--max-bytes", "many"], "--max-bytes"), (["--device", "tpu"], "tpu"),
                           (["--ceilings", self.folder / "none.json"], "none.json"),
                           (["--ceilings", ceilings(self.folder, ranks=4)], "measured with 4 ranks on cpu"),
                           (["extra"], "extra")):
            result = self.assert_error(self.comm(*args), 2, part)
            self.assertEqual(result.stdout, "")
        self.assert_error(self.comm("--ceilings", ceilings(self.folder, device="NVIDIA H200")), 2,
                          "on NVIDIA H200, this is a job of 2 on cpu")


class CopyTest(kt.K25Test):
    def copy(self, *args, ranks=None):
        return kt.run(["bench", "copy", "--device", "cpu", "--min-bytes", "1048576", "--max-bytes", "4194304", *args],
                      ranks)

    def test_host_copies(self):
        for ranks in (None, 2):
            result = self.assert_ok(self.copy("--threads", "2", ranks=ranks))
            table = [line.rsplit(None, 5) for line in result.stdout.splitlines()[3:]]
            names = {row[0] for row in table}
            self.assertLessEqual({"host, 1 thread"}, names)
            self.assertLessEqual(names, {"host, 1 thread", "host, 2 threads"})
            for row in table:
                size, micro, gb = int(row[1]), float(row[2]), float(row[3])
                self.assertAlmostEqual(gb * micro * 1e3 / (2 * size), 1, delta=0.01)
                self.assertEqual(row[4:], ["n/a", "n/a"])

    def test_floor(self):
        result = self.assert_ok(self.copy("--threads", "2", "--ceilings", ceilings(self.folder, ranks=1)))
        for line in result.stdout.splitlines()[3:]:
            name, size, micro, _, floor, ratio = line.rsplit(None, 5)
            if name == "host, 1 thread":
                self.assertEqual((floor, ratio), ("n/a", "n/a"))
            else:
                self.assertAlmostEqual(float(floor) * 8e3 / (2 * int(size)), 1, delta=0.01)
                assert_ratio(self, ratio, floor, micro)

    def test_bad_options(self):
        for args, part in ((["--threads", "0"], "--threads: expected an integer"),
                           (["--op", "all_gather"], "--op"), (["--ceilings", ""], "--ceilings")):
            self.assert_error(self.copy(*args), 2, part)


class OpTest(kt.K25Test):
    def op(self, *args):
        return kt.run(["bench", "op", *SMALL_OP, *args])

    def test_only_what_is_named(self):
        result = self.assert_ok(self.op("norm", "gemm"))
        names = {" ".join(line.split()[:-5]) for line in result.stdout.splitlines()[4:]}
        self.assertEqual(names, {"rmsnorm + residual forward", "rmsnorm backward", "gemm forward",
                                 "gemm input gradient", "gemm weight gradient"})

    def test_adamw_by_threads(self):
        result = self.assert_ok(self.op("adamw", "--threads", "1", "3"))
        head, *lines = result.stdout.split("\nadamw, ")[1].splitlines()
        count = int(head.split()[0])
        self.assertEqual(count % 4096, 0)
        self.assertEqual([line.split()[0] for line in lines], ["threads", "1", "3"])
        for line in lines[1:]:
            _, ms, gb, rate, copy_gb, copy_rate = map(float, line.split())
            self.assertAlmostEqual(rate * ms * 1e6 / count, 1, delta=0.01)
            self.assertAlmostEqual(gb / rate, 28, delta=0.3)
            self.assertAlmostEqual(copy_gb / copy_rate, 30, delta=0.3)

    def test_bad_options(self):
        for args, part in ((["softmax"], "softmax"), (["norm", "--threads", "2"], "--threads is for"),
                           (["adamw", "--threads", "0"], "--threads: expected an integer")):
            self.assert_error(self.op(*args), 2, part)


if __name__ == "__main__":
    unittest.main()
