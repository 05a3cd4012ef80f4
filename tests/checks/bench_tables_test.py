"""scripts/bench: the tables of recorded lines, and what they refuse."""
import json
import sys
import unittest

from bench_case import BENCH, BenchScriptTest, offload_line, step_line

NOTES = ('{"event":"note","text":"model: 8321765376 parameters in 32 layers; 2 ranks; batch 32 = micro_batch 2 x ..."}',
         '{"event":"note","text":"data: 9 tokens, ...; memory planned 107374182400 bytes a rank, allocated 107374182400"}')


def train_step(step, loss=2.5, ms=8000.0, gib=98.0, **more):
    return json.dumps({"step": step, "steps": 1000000, "loss": loss, "loss_max": loss, "gnorm": 0.5, "lr": 2e-5,
                       "tok/s": 131072e3 / ms, "step_ms": ms, **more, "mem_gib": gib}, separators=(",", ":"))


class BenchTableTest(BenchScriptTest):
    def table(self, script, *args):
        return self.run_it(sys.executable, BENCH / script, *args)

    def rows(self, *args):
        code, shown, said = self.table(*args)
        self.assertEqual(code, 0, said)
        return [line.split() for line in shown.splitlines()]

    def refused(self, part, *args):
        code, shown, said = self.table(*args)
        self.assertEqual((code, shown), (1, ""), said)
        self.assertIn(part, said)


class OffloadTest(BenchTableTest):
    """Recorded on an H200."""
    NONE = ("== none", "k25: warning: x", step_line(ms=1845.9, peak=45.8, planned=45.8, states=18.88))
    OPTIMIZER = ("== optimizer", step_line(ms=2224.0, peak=31.6, planned=33.0, states=7.08),
                 offload_line(copy=2.5, cpu=475, exposed=380.0, threads=15))

    def test_recorded(self):
        shown = self.rows("step_table.py", "offload", self.write("out", "noise", *self.NONE, *self.OPTIMIZER))
        self.assertEqual(shown[1], "none 1845.9 - 18.880 - 45.800 45.800 100.0% - - - - -".split())
        self.assertEqual(shown[2], "optimizer 2224.0 +20.5 % 7.080 -62.5 % 31.600 33.000 95.8% 2.5 475.0 380.0 15 23.50".split())

    def test_a_row_that_failed(self):
        """It has dashes, and so has what would be compared with it; the table still comes."""
        out = self.write("out", "== none", "k25: error: out of memory", *self.OPTIMIZER)
        code, shown, said = self.table("step_table.py", "offload", out)
        self.assertEqual((code, said), (1, ""))
        rows = [line.split() for line in shown.splitlines()]
        self.assertEqual(rows[1], ["none"] + ["-"] * 12)
        self.assertEqual(rows[2][:4], ["optimizer", "2224.0", "-", "7.080"])

    def test_what_is_refused(self):
        step = self.NONE[2]
        for lines, part in ((["noise"], "nothing to read"), (["== none", "noise"], "no line of k25 bench step"),
                            (["== nothing", step], "out:1: no row of this table: 'nothing'"),
                            (["== none", step, step], "out:3: a second line 'step ranks='"),
                            (["== none", step, "== none", step], "out:3: '== none' stands there twice"),
                            (["== none", step.replace("1845.90", "nan")], "out:2: cannot be read"),
                            (["== none", step.replace("median_ms=1845.90", "median_ms=0")], "out:2: cannot be read"),
                            (["== none", step.split(" mem_gib")[0]], "out:2: cannot be read (KeyError('mem_gib'))"),
                            (["== none", step, "offload copy_ms=1.0 cpu_ms="], "out:3: cannot be read")):
            self.refused(part, "step_table.py", "offload", self.write("out", *lines))
        self.refused("none: No such file", "step_table.py", "offload", self.folder / "none")
        for args in ([], ["offload"], ["offloads", "x"]):
            self.assertEqual(self.table("step_table.py", *args)[0], 2)


class OtherStepTablesTest(BenchTableTest):
    def test_recompute(self):
        shown = self.rows("step_table.py", "recompute",
                          self.write("out", "== none", step_line(ms=531.1, peak=70.2, planned=70.2),
                                     "== all", step_line(ms=689.5, peak=29.2, planned=29.5)))
        self.assertEqual(shown[1:], ["none 531.1 - 70.200 - 70.200 100.0%".split(),
                                     "all 689.5 1.298 29.200 -58.4 % 29.500 99.0%".split()])

    def test_scaling(self):
        """Each way to reduce against its own run on one GPU."""
        out = self.write("out", "== 1 ordered", step_line(ms=531.1), "== 2 ordered", step_line(2, 65536, 555.8),
                         "== 1 library", step_line(ms=530.0), "== 2 library", step_line(2, 65536, 530.0))
        shown = self.rows("step_table.py", "scaling", out)
        self.assertEqual([row[:5] for row in shown[1:]],
                         ["1 ordered 531.1 61698 -".split(), "2 ordered 555.8 58956 0.956".split(),
                          "1 library 530.0 61826 -".split(), "2 library 530.0 61826 1.000".split()])

    def test_scaling_refuses(self):
        for lines, part in ((["== ordered", step_line()], "no row of this table: 'ordered'"),
                            (["== 2 other", step_line(2)], "no row of this table: '2 other'"),
                            (["== 2 ordered", step_line(1)], "'== 2 ordered' was run by 1 ranks")):
            self.refused(part, "step_table.py", "scaling", self.write("out", *lines))


class RecipeTest(BenchTableTest):
    def run_of(self, name, *losses, **more):
        return [f"== {name}", *NOTES, *(train_step(i, loss, **more) for i, loss in enumerate(losses, 1)),
                "k25: stopped by signal 15; what was saved before stands"]

    def recipe(self, *lines, steps=4):
        return self.table("train_table.py", "recipe", "--steps", steps, "--warmup", 1, self.write("out", *lines))

    def test_equal_losses(self):
        off = self.run_of("off", 12.1, 12.0, 11.5, 11.25)
        on = self.run_of("on", 12.1, 12.0, 11.5, 11.25, 9.0, ms=10000.0, gib=49.0, offload_copy_ms=2.0,
                         offload_cpu_ms=900.0, offload_exposed_ms=700.0)  # a step more than was asked for
        code, shown, said = self.recipe(*off, *on)
        self.assertEqual(code, 0, said)
        lines = shown.splitlines()
        self.assertEqual(lines[1].split(), "off 2 8000.0 8192 98.000 100.000 98.0% - - -".split())
        self.assertEqual(lines[2].split(), "on 2 10000.0 6554 49.000 100.000 49.0% 2.0 900.0 700.0".split())
        self.assertEqual(lines[3], "memory -50.0 %, throughput -20.0 %; the recipe's document: -45 % and -18 %")
        self.assertEqual(lines[4], "losses equal: yes, over 4 steps")

    def test_losses_that_differ(self):
        """In the last place of one step, and in the gradient norm alone."""
        off = self.run_of("off", 12.1, 12.0, 11.5, 11.25)
        code, shown, _ = self.recipe(*off, *self.run_of("on", 12.1, 12.0, 11.500000000000002, 11.25))
        self.assertEqual(code, 1)
        self.assertIn("losses equal: no (1 of 4 steps differ; step 3: loss and gnorm (11.5, 0.5) off", shown)
        norm = [line.replace('"gnorm":0.5', '"gnorm":0.25') for line in self.run_of("on", 12.1, 12.0, 11.5, 11.25)]
        code, shown, _ = self.recipe(*off, *norm)
        self.assertEqual(code, 1)
        self.assertIn("losses equal: no (4 of 4", shown)

    def test_one_run_alone(self):
        code, shown, _ = self.recipe(*self.run_of("off", 1.0, 1.0, 1.0, 1.0))
        self.assertEqual(code, 0)
        self.assertIn("losses not compared", shown)
        code, shown, _ = self.recipe(*self.run_of("off", 1.0, 1.0, 1.0, 1.0), "== on", "k25: error: out of memory")
        self.assertEqual(code, 1)
        self.assertIn("losses not compared", shown)

    def test_two_files(self):
        files = [self.write(name, *self.run_of(name, 1.0, 2.0)) for name in ("off", "on")]
        shown = self.rows("train_table.py", "recipe", "--steps", 2, "--warmup", 1, *files)
        self.assertEqual(" ".join(shown[-1]), "losses equal: yes, over 2 steps")

    def test_what_is_refused(self):
        good = self.run_of("off", 1.0, 2.0, 3.0, 4.0)
        for lines, part in ((good[:5], "are not 1 to 4: [1, 2]"), (good[:4] + good[5:], "are not 1 to 4: [1, 3, 4]"),
                            ([good[0], *good[2:]], "out:1: no line with the number of ranks"),
                            (["== off"], "no progress line"), (good + good, "'== off' stands there twice"),
                            ([*good[:3], '{"step":1,"st'], "out:4: cannot be read"),
                            ([*good[:3], good[3].replace('"loss":1.0,', "")], "out:4: cannot be read (KeyError('loss'))")):
            code, shown, said = self.recipe(*lines)
            self.assertEqual((code, shown), (1, ""), said)
            self.assertIn(part, said)
        for args in (["--steps", "3", "--warmup", "3"], ["--warmup", "0"], ["--steps", "x"]):
            self.assertEqual(self.table("train_table.py", "recipe", *args, self.write("out", *good))[0], 2)


class WatchTest(BenchTableTest):
    def run_of(self, name, *milliseconds):
        """The first line is step 1, which came at second 100."""
        lines, now = [f"== {name}", "@99.5 k25: model: ...", "@100.000000 step=1/1000000 loss=1.0"], 100.0
        for step, ms in enumerate(milliseconds, 2):
            now += ms / 1e3
            lines.append(f"@{now:.6f} step={step}/1000000 loss=1.0 step_ms=0.1")
        return lines

    def watch(self, *lines, steps=4):
        return self.table("train_table.py", "watch", "--steps", steps, "--warmup", 2, self.write("out", *lines))

    def test_cost(self):
        """By hand: means 500 and 500.5, 501 and 501.5; the first two steps do not count."""
        code, shown, said = self.watch(*self.run_of("off", 9000, 499, 501), *self.run_of("on", 1, 500, 501),
                                       *self.run_of("off", 1, 501, 501), *self.run_of("on", 1, 501, 502))
        self.assertEqual(code, 0, said)
        lines = shown.splitlines()
        self.assertEqual(lines[1].split(), "off 2 500.000 500.000 499.000 501.000".split())
        self.assertEqual(lines[5], "by the mean: +0.100 % of a step (+0.100 to +0.100 in 2 pairs); runs of one kind differ by "
                                   "up to 0.200 %; at most 0.2 %")

    def test_verdicts(self):
        for on, part in (((505, 505), "+1.000 % of a step (+1.000 to +1.000 in 2 pairs); runs of one kind differ by up to "
                                      "0.000 %; MORE than 0.2 %"),
                         ((495, 505), "+-1.000 cannot tell 0.2 %"), ((500,), "one pair has no spread")):
            lines = [line for ms in on for line in (*self.run_of("off", 1, 500, 500), *self.run_of("on", 1, ms, ms))]
            code, shown, _ = self.watch(*lines)
            self.assertEqual(code, 0)
            self.assertIn(part, shown)

    def test_what_is_missing(self):
        """A run that failed takes its pair out; without a pair there is nothing."""
        off, on = self.run_of("off", 1, 500, 500), self.run_of("on", 1, 500, 500)
        code, shown, _ = self.watch(*off, "== on", "@1 k25: error: x", *off, *on)
        self.assertEqual(code, 1)
        self.assertIn("in 1 pairs", shown)
        for lines, part in ((off, "nothing to compare"), ([*on, *off], "nothing to compare"),
                            ([*off[:-1], *on], "are not 1 to 4: [1, 2, 3]"),
                            ([off[0], "@x step=1/10 loss=1"], "out:2: cannot be read"),
                            (self.run_of("off", 1, 0, 500), "came at the same time")):
            code, _, said = self.watch(*lines)
            self.assertEqual(code, 1)
            self.assertIn(part, said)


class AdamwTest(BenchTableTest):
    def k25(self, *rows, count=34603008):
        return ["== K25", "copy 11.47 GB/s, matrix product 0.1368 TFLOP/s, bf16", "adamw    0.28  39.14  0  0.9  3.4",
                f"adamw, {count} parameters", "threads             ms        GB/s      Gparam/s     copy GB/s copy Gparam/s",
                *rows]

    def torch(self, *rows, count=34603008):
        return ["== PyTorch", f"torch 2.11.0 fused AdamW, {count} parameters",
                "threads             ms        GB/s      Gparam/s     copy GB/s copy Gparam/s", *rows]

    def test_rounds(self):
        """Medians of two rounds: (80 + 82) / 2 over (72 + 78) / 2."""
        out = self.write("out", *self.k25("1 1 10 1 9 1", "16 1 80 3 75 2"), *self.torch("1 1 8 1 6 1", "16 1 72 3 50 2"),
                         *self.k25("1 1 10 1 9 1", "16 1 82 3 75 2"), *self.torch("1 1 8 1 6 1", "16 1 78 3 50 2"))
        shown = self.rows("adamw_table.py", out)
        self.assertEqual(shown[2:], ["1 10.00 8.00 1.250 9.00 6.00 1.500".split(),
                                     "16 81.00 75.00 1.080 75.00 50.00 1.500".split()])

    def test_a_count_that_one_lacks(self):
        shown = self.rows("adamw_table.py", self.write("out", *self.k25("1 1 10 1 9 1", "2 1 20 1 9 1"),
                                                       *self.torch("1 1 8 1 6 1")))
        self.assertEqual(shown[3], "2 20.00 - - 9.00 - -".split())

    def test_what_is_refused(self):
        row = "1 1 10 1 9 1"
        for lines, part in ((self.k25(row), "no row of PyTorch's AdamW"), (self.torch(row), "no row of K25's AdamW"),
                            (self.k25(row) + self.torch(row, count=1000), "different numbers of parameters: [1000, 34603008]"),
                            (self.k25("1 1 10") + self.torch(row), "out:6: cannot be read"),
                            (self.k25("1 1 inf 1 9 1") + self.torch(row), "out:6: cannot be read"),
                            (["== PyTorch", "threads ms", row], "out:1: no line with the number of parameters")):
            self.refused(part, "adamw_table.py", self.write("out", *lines))
        self.assertEqual(self.table("adamw_table.py")[0], 2)


if __name__ == "__main__":
    unittest.main()
