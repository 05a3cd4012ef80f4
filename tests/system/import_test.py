"""k25 config --import-ds-config: what a DeepSpeed config becomes, and that what comes out is a config."""
import json
import os
import pathlib
import re
import unittest

import k25_testing as kt

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = ROOT / "tests/golden/recipe_ds_config.json"
SMALL = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
         "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.8, 0.95], "weight_decay": 0.1}},
         "scheduler": {"type": "WarmupDecayLR",
                       "params": {"warmup_type": "linear", "warmup_num_steps": 2, "warmup_max_lr": 2e-3,
                                  "total_num_steps": 6}},
         "gradient_clipping": 1.0, "zero_optimization": {"stage": 2, "overlap_comm": True},
         "tensorboard": {"enabled": False}}
SYSTEM = "run:\n  dir: {}\nmodel:\n  layers: 2\n  hidden: 16\n  heads: 2\n  ffn: 32\n  vocab: 300\n" \
         "data:\n  train: {}\n  sequence: 32\n"


class ImportTest(kt.K25Test):
    def write(self, content, name="ds.json"):
        path = self.folder / name
        text = content if isinstance(content, (str, bytes)) else json.dumps(content, indent=1)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def imported(self, path):
        return kt.run(["config", "--import-ds-config", path])

    def complete(self, fragment):
        """The fragment as a config, with what a DeepSpeed config does not hold."""
        text = fragment + SYSTEM.format(self.run_dir, kt.corpus())
        self.config_path.write_text(text.replace("  # steps: ...  # add it", "  steps: 4"))
        return self.config_path

    def shown(self, path, *args):
        """{"train.batch": "8"} as k25 config prints them."""
        text = self.assert_ok(kt.run(["config", path, *args])).stdout
        values, sections = {}, []
        for line in text.splitlines():
            indent, name, value = re.fullmatch(r"( *)([a-z_0-9]+):(?: (.*?)(?:  # .*)?)?", line).groups()
            sections[len(indent) // 2:] = [name]
            if value is not None:
                values[".".join(sections)] = value
        return values

    def test_the_recipe_s_own_file(self):
        result = self.assert_ok(self.imported(RECIPE))
        self.assertEqual(result.stderr, "")
        text = RECIPE.read_text()
        for key, end in (("train_batch_size", " = 1024 -> train.batch: 1024"),
                         ("gradient_accumulation_steps", " = 8 -> train.accumulation: 8")):
            line = f"# mapped          {RECIPE}:1:{text.index(key)}: {key}{end}"
            self.assertIn(line, result.stdout.splitlines())
        told = [l for l in result.stdout.splitlines() if l.startswith(("# mapped", "# without effect", "# refused"))]
        self.assertEqual(len(told), 17)
        self.assertNotIn("# refused", result.stdout)

        path = self.complete(result.stdout)
        values = self.shown(path, "--ranks", "8")
        expected = {"train.batch": "1024", "train.accumulation": "8", "train.precision": "bf16", "train.steps": "4",
                    "optim.type": "adamw", "optim.lr": "2e-05", "optim.betas": "[0.9, 0.999]", "optim.eps": "1e-08",
                    "optim.weight_decay": "0.01", "optim.clip": "0", "optim.schedule.kind": "constant",
                    "zero.reshard_after": "auto", "recompute.layers": "[]"}
        self.assertEqual({key: values[key] for key in expected}, expected)
        self.assertIn("  optimizer: host  # ", result.stdout)
        self.assertIn("  params: host  # ", result.stdout)

    def test_what_comes_out_trains(self):
        result = self.assert_ok(self.imported(self.write(SMALL)))
        path = self.complete(result.stdout)
        values = self.shown(path, "--ranks", "2")
        expected = {"train.batch": "8", "train.micro_batch": "2", "train.accumulation": "2", "train.steps": "6",
                    "train.precision": "fp32", "optim.lr": "0.002", "optim.betas": "[0.8, 0.95]", "optim.eps": "1e-08",
                    "optim.weight_decay": "0.1", "optim.clip": "1", "optim.schedule.kind": "wsd",
                    "optim.schedule.warmup": "2", "optim.schedule.decay": "4", "optim.schedule.min_ratio": "0",
                    "zero.reshard_after": "step", "log.tensorboard": "false"}
        self.assertEqual({key: values[key] for key in expected}, expected)
        self.assert_ok(kt.run(["train", path], 2))
        with open(self.run_dir / "metrics.jsonl", encoding="utf-8") as file:
            rates = [record["lr"] for record in map(json.loads, file) if "lr" in record]
        for told, want in zip(rates, [0.001, 0.002, 0.002, 0.0015, 0.001, 0.0005], strict=True):
            self.assertAlmostEqual(told, want, places=9)

    def test_a_refusal_leaves_only_comments(self):
        path = self.write({**SMALL, "fp16": {"enabled": True}, "optimiser": {}, "pipeline": {"stages": 2}})
        lines = path.read_text().splitlines()
        at = {word: f"{path}:{1 + next(i for i, l in enumerate(lines) if word in l)}" for word in
              ("fp16", "optimiser", "pipeline")}
        enabled = f"{path}:{2 + lines.index(' ' + json.dumps('fp16') + ': {')}"
        result = self.assert_error(self.imported(path), 2,
                                   f"k25: error: {enabled}:3: fp16.enabled: fp16 needs loss scaling; use bf16\n",
                                   f"\n{at['optimiser']}:2: optimiser: unknown key (did you mean 'optimizer'?)\n",
                                   f"\n{at['pipeline']}:2: pipeline: k25 has no pipeline parallelism\n")
        self.assertTrue(all(line.startswith("# ") for line in result.stdout.splitlines()))
        self.assertEqual(result.stdout.count("\n# refused "), 4)
        empty = self.write(result.stdout, "out.yaml")
        self.assert_error(kt.run(["config", empty]), 2, "the file is empty")

    def test_the_first_twenty_problems(self):
        path = self.write({**SMALL, **{f"qqqqqq{i}": i for i in range(25)}})
        result = self.assert_error(self.imported(path), 2, "qqqqqq19: unknown key", "\nand 5 more problems\n")
        self.assertEqual(result.stderr.count("unknown key"), 20)

    def test_broken_files(self):
        rows = (("", ": the file is empty"), ("[1]", ":1:1: expected one JSON object"),
                ('{"a": 1,}', ":1:8: a comma before '}'"), ('{"a": 1} // x', ":1:10: JSON has no comments"),
                ('{"a": NaN}', ":1:7: 'NaN' is no JSON number"), (b'{"a": "\xff"}', ":1:8: the text is not UTF-8"),
                ('{"a": 1,\n "a": 2}', ":2:2: duplicate key 'a', first given at"),
                ('{"a": ' + "[" * 100000, ":1:70: nested deeper than 64 levels"), ("train:\n  batch: 8\n", ":1:1: 'train' is"))
        for content, fragment in rows:
            with self.subTest(content=content[:20]):
                path = self.write(content)
                result = self.assert_error(self.imported(path), 2, f"k25: error: {path}{fragment}")
                self.assertEqual(result.stdout, "")
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_a_byte_order_mark_tabs_and_crlf_are_read(self):
        text = json.dumps(SMALL, indent="\t").replace("\n", "\r\n")
        marked = self.assert_ok(self.imported(self.write(b"\xef\xbb\xbf" + text.encode())))
        self.assertIn("ds.json:2:2: train_batch_size = 8 -> train.batch: 8", marked.stdout)

    def test_files_that_cannot_be_read(self):
        none, pipe = self.folder / "none.json", self.folder / "pipe"
        os.mkfifo(pipe)
        for path, fragment in ((none, "No such file or directory"), (self.folder, "is a directory"),
                               (pipe, "is no regular file"), ("/dev/zero", "is no regular file")):
            self.assert_error(self.imported(path), 2, path, fragment)

    def test_it_stands_alone(self):
        for args in ([self.write_config()], ["--set", "a.b=1"], ["--ranks", "2"], ["--keys"], ["--ds-keys"]):
            self.assert_error(kt.run(["config", "--import-ds-config", RECIPE, *args]), 2, "excludes --import-ds-config")

    def test_the_documented_keys_are_those_of_the_program(self):
        for flag in ("--keys", "--ds-keys"):
            for args in ([self.write_config()], ["--set", "a.b=1"], ["--ranks", "2"]):
                self.assert_error(kt.run(["config", flag, *args]), 2, flag)
        keys = self.assert_ok(kt.run(["config", "--ds-keys"])).stdout
        listed = [tuple(re.split(r" {2,}| (?=(?:mapped|without effect|refused|follows) )", line, maxsplit=2))
                  for line in keys.splitlines()]
        text = (ROOT / "docs/coming-from-deepspeed.md").read_text()
        documented = []
        for cell, fate, note in re.findall(r"^\| (`.*`) \| (.*?) \| (.*) \|$", text, re.M):
            for path in re.findall(r"`([^`]+)`", cell):
                section, braces, names = path.partition("{")
                for name in names.rstrip("}").split(", ") if braces else [""]:
                    documented.append((section + name, " ".join(fate.split()), note))
        self.assertEqual(len(documented), len(set(documented)), "a key is documented twice")
        self.assertEqual(sorted(documented), sorted((p, f, n.strip()) for p, f, n in listed))


class RecipeConfigTest(kt.K25Test):
    def test_the_recipe_s_job(self):
        config = ROOT / "configs/recipe-32l.yaml"
        result = self.assert_ok(kt.run(["config", config, "--ranks", "8"]))
        for line in ("layers: 32", "hidden: 4096", "heads: 32", "kv_heads: 8", "ffn: 14336", "vocab: 163840",
                     "tie_embeddings: false", "pattern: [gqa/swiglu]", "batch: 1024", "accumulation: 8",
                     "precision: bf16", "lr: 2e-05", "betas: [0.9, 0.999]", "eps: 1e-08", "weight_decay: 0.01"):
            self.assertRegex(result.stdout, rf"\n +{re.escape(line)}  # ")
        self.assertIn("micro_batch: auto  # default; here 16", result.stdout)
        text = config.read_text()
        self.assertIn(f"layers: {list(range(7, 19))}", text)
        self.assertIn("offload: {optimizer: host, params: host}", text)


if __name__ == "__main__":
    unittest.main()
