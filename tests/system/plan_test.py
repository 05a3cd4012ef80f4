"""k25 plan: what it prints, that it holds, and what it refuses."""
import json
import pathlib
import re
import unittest

import k25_testing as kt

ROOT = pathlib.Path(__file__).resolve().parents[2]
CARDS = ["a100-40", "a100-80", "h100", "h20", "h200", "b200"]
CEILINGS = {"format": "k25 ceilings 1", "device": "NVIDIA H200", "ranks": 2, "memory_bytes": 150 * 10**9,
            "precision": "bf16", "copy_gb_per_s": 4000, "gemm_tflop_per_s": 600,
            "attention_forward_tflop_per_s": 500, "attention_backward_tflop_per_s": 400,
            "all_gather_gb_per_s": 200, "reduce_scatter_gb_per_s": 200, "triad_gb_per_s": 70}
# 8.3 B parameters: too large for one card, as the recipe's job is.
RECIPE = {"model": {"preset": "recipe-32l"}, "data.sequence": 4096, "train.batch": 1024,
          "train.accumulation": 8, "train.precision": "bf16", "train.micro_batch": None,
          "recompute.layers": "all"}


class PlanTest(kt.K25Test):
    def plan(self, *args, changes=None, ranks=None):
        path = self.write_config(changes, manifest="corpus/manifest.json")
        return kt.run(["plan", path, *args], ranks)

    def cells(self, text, label):
        """The cells of the first row with this label."""
        for line in text.splitlines():
            words = re.split(r"\s{2,}", line.strip())
            if words[0] == label:
                return words[1:]
        self.fail(f"no row '{label}' in:\n{text}")

    def examples(self, name):
        """The arguments of every indented `k25 plan` line of a document, with the lines of output shown below."""
        text = (ROOT / name).read_text()
        for line in re.findall(r"(?m)^    (?:\S*/)?k25 plan (configs/.*)$", text):
            yield line.split(), text[text.index(line) + len(line):].split("\n## ")[0]

    def test_the_documents_examples_fit_and_tell_time_and_price(self):
        for name in ("README.md", "docs/usage.md"):
            found = list(self.examples(name))
            self.assertEqual(len(found), 1, name)
            for args, below in found:
                shown = self.assert_ok(kt.run(["plan", ROOT / args[0], *args[1:]])).stdout
                for label in ("step, ms", "tokens/s", "price"):
                    self.assertNotIn("n/a", self.cells(shown, label))
                told = [line.split() for line in below.splitlines() if re.match(r"    (fits|left|step|tok|\d|price)", line)]
                self.assertEqual(len(told), 6 if name == "docs/usage.md" else 0)
                rows = [line.split() for line in shown.splitlines()]
                for row in told:
                    self.assertIn(row, rows)

    def test_all_cards_side_by_side(self):
        shown = self.assert_ok(self.plan("--gpus", 2, changes={"train.precision": "bf16"})).stdout
        self.assertEqual(self.cells(shown, "bytes per rank"), CARDS + ["host"])
        self.assertEqual(self.cells(shown, "GiB per rank"), CARDS + ["host"])
        self.assertEqual(self.cells(shown, "fits"), ["yes"] * len(CARDS))
        self.assertEqual(self.cells(shown, "ceilings"),
                         ["measured" if card == "h200" else "estimated" for card in CARDS])
        for label in ("masters", "moments", "activations", "planned", "step, ms", "tokens/s/GPU", "4 steps"):
            self.assertGreaterEqual(len(self.cells(shown, label)), len(CARDS), label)
        self.assertIn("8 = micro_batch 1 x accumulation 4 x 2 data ranks; 256 tokens a step", shown)

    def test_planned_bytes_are_what_a_run_allocates(self):
        variants = ({}, {"recompute.layers": "all"}, {"recompute.cheap": True},
                    {"zero.reshard_after": "forward", "train.precision": "bf16"},
                    {"model.tie_embeddings": True}, {"reduce.mode": "library"})
        for number, changes in enumerate(variants):
            shown = self.assert_ok(self.plan("--gpus", 2, "--gpu", "cpu", changes=changes)).stdout
            planned = int(self.cells(shown, "planned")[0])
            run = self.assert_ok(self.train({**changes, "train.steps": 2}, 2,
                                            run_dir=self.folder / f"run{number}"))
            peak = re.search(r"peaked at (\d+) to (\d+) bytes a rank, planned (\d+)", run.stdout + run.stderr)
            self.assertIsNotNone(peak, str(run))
            self.assertEqual(int(peak.group(3)), planned, changes)
            self.assertEqual(int(peak.group(2)), planned, changes)

    def test_the_recipes_model_and_what_makes_it_fit(self):
        small = self.plan("--gpus", 8, "--gpu", "a100-80", changes=RECIPE)
        shown = self.assert_error(small, 2, "the run does not fit on a100-80").stdout
        self.assertEqual(self.cells(shown, "fits"), ["NO"])
        self.assertIn("8321765376 parameters", shown)
        self.assertIn("1024 = micro_batch 16 x accumulation 8 x 8 data ranks", shown)
        change = re.search(r"fits with ((?:--set \S+ ?)+): (\d+) bytes", shown)
        self.assertIsNotNone(change, shown)
        again = self.assert_ok(self.plan("--gpus", 8, "--gpu", "a100-80", *change.group(1).split(),
                                         changes=RECIPE)).stdout
        self.assertEqual(self.cells(again, "planned")[0], change.group(2))
        # One card that is large enough is enough.
        both = self.assert_ok(self.plan("--gpus", 8, "--gpu", "a100-80,b200", changes=RECIPE)).stdout
        self.assertEqual(self.cells(both, "fits"), ["NO", "yes"])

    def test_recompute_saves_bytes_and_costs_time(self):
        shown = self.assert_ok(self.plan("--gpus", 8, "--gpu", "b200", changes=RECIPE)).stdout
        nothing, everything = self.cells(shown, "nothing"), self.cells(shown, "all layers")
        self.assertEqual(nothing[2:], ["0.000", "0.0", "+0.0", "+0.0"])
        self.assertLess(int(everything[0]), int(nothing[0]))
        self.assertTrue(20 < float(everything[4]) < 40, shown)
        self.assertEqual(self.cells(shown, "as configured"), everything)

    def test_legal_and_illegal_numbers_of_gpus(self):  # A05
        changes = {**RECIPE, "model": {"layers": 2, "hidden": 16, "heads": 2, "ffn": 32, "vocab": 300}}
        for gpus, micro in ((8, 16), (16, 8), (32, 4), (64, 2), (128, 1)):
            shown = self.assert_ok(self.plan("--gpus", gpus, "--gpu", "h200", changes=changes)).stdout
            self.assertIn(f"1024 = micro_batch {micro} x accumulation 8 x {gpus} data ranks", shown)
        for gpus, near in ((6, "4 and 8"), (12, "8 and 16"), (24, "16 and 32"), (48, "32 and 64"), (256, "128")):
            self.assert_error(self.plan("--gpus", gpus, changes=changes), 2,
                              f"1024 = micro_batch auto x accumulation 8 x {gpus} data ranks",
                              f"legal numbers of data ranks nearby: {near}")

    def test_prices(self):
        changes = {"train.precision": "bf16", "train.steps": 10**9}
        price = lambda *args: [float(cell) for cell in self.cells(
            self.assert_ok(self.plan("--gpus", 2, "--gpu", "h100,h200", *args, changes=changes)).stdout, "price")]
        one = price("--price-per-gpu-hour", 2)
        self.assertTrue(all(p > 0 for p in one))
        for got, want in zip(price("--price-per-gpu-hour", "2,6"), (one[0], 3 * one[1])):
            self.assertAlmostEqual(got / want, 1.0, places=2)
        self.assert_error(self.plan("--gpus", 2, "--gpu", "h200", "--price-per-gpu-hour", "1,2"), 2,
                          "2 prices for 1 cards")

    def test_ceilings_of_a_file(self):
        path = self.folder / "ceilings.json"
        path.write_text(json.dumps(CEILINGS))
        changes = {"train.precision": "bf16"}
        shown = self.assert_ok(self.plan("--gpus", 2, "--ceilings", path, changes=changes)).stdout
        self.assertEqual(self.cells(shown, "ceilings"), ["your file"])
        self.assertEqual(self.cells(shown, "matrix product, TFLOP/s"), ["600"])
        self.assertEqual(self.cells(shown, "the card has"), ["150000000000"])
        shown = self.assert_ok(self.plan("--gpus", 2, "--gpu", "b200", "--ceilings", path, changes=changes)).stdout
        self.assertEqual(self.cells(shown, "bytes per rank"), ["b200", "host"])
        self.assert_error(self.plan("--gpus", 2, "--gpu", "b200,h100", "--ceilings", path), 2, "name one")
        self.assert_error(self.plan("--gpus", 2, "--gpu", "cpu", "--ceilings", path), 2, "not of --gpu cpu")
        # fp32 has no ceilings there, and no number is made up.
        shown = self.assert_ok(self.plan("--gpus", 2, "--ceilings", path)).stdout
        self.assertEqual(self.cells(shown, "step, ms"), ["n/a"])
        self.assertIn("no prediction: ceilings are for bf16, train.precision is fp32", shown)

    def test_bad_ceilings(self):
        path = self.folder / "ceilings.json"
        self.assert_error(self.plan("--gpus", 1, "--ceilings", path), 2, path)
        for text, fragment in (("{", "no JSON"), (json.dumps({**CEILINGS, "copy_gb_per_s": -1}), "above 0"),
                               (json.dumps({**CEILINGS, "copi": 1}), "unknown key 'copi'")):
            path.write_text(text)
            self.assert_error(self.plan("--gpus", 1, "--ceilings", path), 2, path, fragment)

    def test_bad_arguments(self):
        for args, fragment in (((), "how many GPUs?"),
                               (("--gpus", 0), "--gpus"), (("--gpus", -2), "--gpus"), (("--gpus", "many"), "--gpus"),
                               (("--gpus", 2, "--gpu", "a100-8"), "unknown card 'a100-8' (did you mean 'a100-80'?)"),
                               (("--gpus", 2, "--gpu", "h200,h200"), "h200 is named twice"),
                               (("--gpus", 2, "--gpu", ""), "--gpu"),
                               (("--gpus", 8, "--nodes", 3), "--gpus 8: --nodes 3 does not divide it"),
                               (("--gpus", 2, "--price-per-gpu-hour", -1), "--price-per-gpu-hour"),
                               (("--gpus", 2, "--price-per-gpu-hour", "nan"), "--price-per-gpu-hour"),
                               (("--gpus", 2, "--price-per-gpu-hour", ".nan"), "--price-per-gpu-hour"),
                               (("--gpus", 2, "--network-gb-per-s", 0), "--network-gb-per-s"),
                               (("--gpus", 2, "--set", "optim.weight_deacy=1"), "did you mean 'weight_decay'?"),
                               (("--gpus", 2, "--set", "optim.freeze=[x*]"), "matches no parameter"),
                               (("--gpus", 2, "--set", "offload.optimizer=disk"), "offload.optimizer")):
            with self.subTest(args=args):
                self.assert_error(self.plan(*args), 2, fragment)
        self.assert_error(kt.run(["plan", self.folder / "none.yaml", "--gpus", 1]), 2, "none.yaml")

    def test_offload(self):
        changes = {"train.precision": "bf16", "train.batch": 16}
        off = self.assert_ok(self.plan("--gpus", 2, "--gpu", "h200", changes=changes)).stdout
        self.assertNotIn("offload, device to host", off)
        shown = self.assert_ok(self.plan("--gpus", 2, "--gpu", "h200",
                                         changes={**changes, "offload.optimizer": "host"})).stdout
        masters, on_host = self.cells(shown, "masters")[:2]
        self.assertEqual(int(masters), 0)
        self.assertEqual([int(on_host), 0], [int(c) for c in self.cells(off, "masters")[:2]])
        moments = self.cells(shown, "moments")[:2]
        self.assertEqual([int(c) for c in moments], [0, 2 * int(on_host)])
        self.assertEqual(int(self.cells(shown, "parameters' shards")[0]), int(on_host) // 2)  # bf16
        # Gradients in fp32 down, parameters in bf16 up, once a step.
        self.assertEqual(int(self.cells(shown, "offload, device to host, bytes")[0]), int(on_host))
        self.assertEqual(int(self.cells(shown, "offload, host to device, bytes")[0]), int(on_host) // 2)
        self.assertIn("no prediction: an offloaded update", shown)
        self.assertNotIn("from the disk", shown)
        on_disk = self.assert_ok(self.plan("--gpus", 2, "--gpu", "h200", changes={
            **changes, "offload.optimizer": "host", "offload.nvme": str(self.folder)})).stdout
        self.assertEqual([int(c) for c in self.cells(on_disk, "moments")[:2]], [0, 0])
        # Whole chunks of m and v: a little more than the moments themselves.
        moved = int(self.cells(on_disk, "offload, from the disk and back, bytes")[0])
        self.assertGreaterEqual(moved, 2 * int(on_host))
        self.assertEqual(moved % 8192, 0)
        for text in (off, shown):  # the same five rows, whatever is configured
            for row in ("nothing", "optimizer", "optimizer, a third resident", "optimizer and params", "as configured"):
                states, activations, buffers, planned = (float(c) for c in self.cells(text, f"offload {row}")[:4])
                self.assertAlmostEqual(states + activations + buffers, planned, delta=0.0021)  # four roundings

    def test_several_nodes(self):
        changes = {"train.precision": "bf16", "train.batch": 16}
        shown = self.assert_ok(self.plan("--nodes", 2, "--gpus-per-node", 8, "--gpu", "h200", changes=changes)).stdout
        self.assertIn("2 nodes, 8 GPUs in each", shown)
        self.assertEqual(self.cells(shown, "network of a GPU, GB/s"), ["50"])
        self.assertGreater(int(self.cells(shown, "through its network card, bytes")[0]), 0)
        self.assertIn("assumed, not measured", shown)

    def test_one_voice_in_a_job(self):
        args = ("--gpus", 2, "--gpu", "h200")
        self.assertEqual(self.assert_ok(self.plan(*args, ranks=2)).stdout, self.assert_ok(self.plan(*args)).stdout)


if __name__ == "__main__":
    unittest.main()
