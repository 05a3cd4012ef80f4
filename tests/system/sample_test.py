"""k25 sample and k25 eval on a finished run, at any number of ranks, and what they refuse."""
import hashlib
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import k25_testing as kt
import train_testing
from k25_testing import K25


class TrainedTest(kt.K25Test):
    """One small run for all tests of a class; tests must not write into it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="k25-trained-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared, ignore_errors=True)
        cls.trained = cls.shared / "run"
        config = kt.set_keys(kt.tiny(cls.trained, kt.corpus()), {"train.steps": 20, "optim.lr": 0.01})
        (cls.shared / "cfg.yaml").write_text(kt.yaml_of(config))
        done = kt.run(["train", cls.shared / "cfg.yaml"])
        assert done.code == 0, str(done)


class SampleTest(TrainedTest):
    def sample(self, *args, ranks=None, code=0):
        result = kt.run(["sample", self.trained, *args], ranks)
        self.assertEqual(result.code, code, str(result))
        return result

    def test_the_text_goes_on_from_the_prompt(self):
        text = self.assert_ok(self.sample("--prompt", "the license", "--tokens", "30")).stdout
        self.assertTrue(text.startswith("the license"), text)
        self.assertGreater(len(text), len("the license\n"))
        self.assertEqual(self.sample("--prompt", "the license", "--tokens", "0").stdout, "the license\n")

    def test_pieces_of_characters_are_printed_as_replacement_characters(self):
        # Nearly uniform over 300 tokens, 256 of which are single bytes.
        words = [K25, "sample", self.trained, "--tokens", "200", "--top-k", "0", "--temperature", "100"]
        done = subprocess.run(words, env=kt.environment(), capture_output=True, check=True)
        self.assertIn("\ufffd", done.stdout.decode("utf-8"))  # strict

    def test_the_same_seed_gives_the_same_text_at_every_rank_count(self):
        texts = {self.assert_ok(self.sample("--prompt", "the", "--tokens", "40", "--seed", "3", ranks=ranks)).stdout
                 for ranks in (None, 1, 2, 3)}
        self.assertEqual(len(texts), 1, texts)
        self.assertNotEqual(texts, {self.sample("--prompt", "the", "--tokens", "40", "--seed", "4").stdout})

    def test_temperature_0_and_top_1_take_the_most_probable_token(self):
        greedy = self.sample("--prompt", "the", "--temperature", "0", "--seed", "1").stdout
        self.assertEqual(greedy, self.sample("--prompt", "the", "--top-k", "1", "--seed", "2").stdout)

    def test_a_model_with_more_rows_than_the_tokenizer_has_pieces(self):
        run = self.folder / "run"
        self.assert_ok(self.train({"train.steps": 1, "model.vocab": 4000}, run_dir=run))
        for seed in range(5):  # 300 of 4000 ids mean something
            self.assert_ok(kt.run(["sample", run, "--temperature", "1", "--top-k", "0", "--seed", str(seed)]))

    def test_more_tokens_than_a_window(self):
        text = self.assert_ok(self.sample("--prompt", kt.words(200, 5), "--tokens", "40", "--temperature", "0")).stdout
        self.assertTrue(text.startswith(kt.words(200, 5)))

    def test_an_empty_prompt_and_one_of_any_script(self):
        self.assert_ok(self.sample("--tokens", "5"))
        text = self.assert_ok(self.sample("--prompt", "\u00e9t\u00e9 \u4f60\u597d \U0001f600", "--tokens", "3")).stdout
        self.assertTrue(text.startswith("\u00e9t\u00e9 \u4f60\u597d \U0001f600"), text)

    def test_prompts_that_are_refused(self):
        self.assert_error(self.sample("--prompt", "a\udcff", ranks=2, code=2), 2, "--prompt", "UTF-8", "byte 1")
        self.assert_error(self.sample("--prompt", "a \u2581", ranks=2, code=2), 2, "--prompt", "U+2581", "byte 2")

    def test_options_that_are_refused(self):
        for args, fragment in ((["--temperature", "-1"], "--temperature"), (["--top-k", "-2"], "--top-k"),
                               (["--temperature", "nan"], "--temperature"), (["--tokens", "x"], "--tokens"),
                               (["--temperature", "inf"], "--temperature")):
            self.assert_error(self.sample(*args, ranks=2, code=2), 2, fragment)

    def test_a_tokenizer_of_another_vocabulary(self):
        other = kt.corpus({"law": {"a.txt": kt.words(2000, 3) + "\u00e4\u00f6\u00fc" * 40}}, vocab=310).parent
        self.assert_error(self.sample("--tokenizer", other / "tokenizer.model", ranks=2, code=2), 2,
                          other / "tokenizer.model", "a vocabulary of 310, the model has 300")
        # As many ids, or fewer, that mean something else.
        for vocab in (300, 280):
            other = kt.corpus({"law": {"a.txt": kt.words(2000, 3) + "\u00e4\u00f6\u00fc" * 40}}, vocab=vocab).parent
            digests = [hashlib.sha256((folder / "tokenizer.model").read_bytes()).hexdigest()
                       for folder in (other, kt.corpus().parent)]
            self.assert_error(self.sample("--tokenizer", other / "tokenizer.model", ranks=2, code=2), 2,
                              other / "tokenizer.model", f"a vocabulary of {vocab}, the model has 300", *digests)
            shown = kt.run(["eval", self.trained, "--set", f"data.train={other / 'manifest.json'}"], 2)
            self.assert_error(shown, 3, other / "manifest.json", *digests)
        same = self.folder / "copy.model"
        shutil.copy(kt.corpus().parent / "tokenizer.model", same)
        self.assertEqual(self.sample("--tokenizer", same, "--tokens", "5").stdout, self.sample("--tokens", "5").stdout)
        self.assert_error(self.sample("--tokenizer", self.folder / "none", ranks=2, code=2), 2, self.folder / "none",
                          "no such file")

    def test_a_tokenizer_that_is_none_is_told_what_sample_takes(self):
        result = self.assert_error(self.sample("--tokenizer", "/dev/null", ranks=2, code=3), 3,
                                   "/dev/null: is no regular file", "the corpus that the run was trained on")
        self.assertNotIn("train a new one", result.stderr)


class InspectTest(TrainedTest):
    def test_an_option_that_chooses_from_a_run_needs_one(self):
        folder = self.trained / "checkpoints" / "step-000020"
        for name, command in (("inspect", ["inspect"]), ("eval", ["eval"]), ("sample", ["sample", "--tokens", "1"])):
            self.assert_ok(kt.run([*command, folder]))
            self.assert_error(kt.run([*command, folder, "--checkpoint", "step:3"]), 2, "--checkpoint step:3",
                              folder, "is one checkpoint")
        corpus = kt.corpus()
        for path in (corpus, corpus.parent):
            self.assert_ok(kt.run(["inspect", path]))
            for option in (["--checkpoint", "latest"], ["--hash"], ["--config"]):
                self.assert_error(kt.run(["inspect", path, *option]), 2, option[0], path, "is a corpus")

    def test_a_damaged_corpus_is_one(self):
        folder = self.folder / "corpus"
        shutil.copytree(kt.corpus().parent, folder)
        for text in (b"", b"[]", b"null", b"\xff", b'{"format": "k25-checkpoint"}'):
            (folder / "manifest.json").write_bytes(text)
            result = self.assert_error(kt.run(["inspect", folder]), 3, folder / "manifest.json")
            self.assertNotIn("json.exception", result.stderr)
            self.assertTrue(result.stderr.isascii(), result.stderr)

    def test_a_file_that_is_no_manifest(self):
        for path in (kt.corpus().parent / "tokens-00000.h5",
                     self.trained / "checkpoints" / "step-000020" / "rank-00000.h5"):
            result = self.assert_error(kt.run(["inspect", path]), 3, path, "an HDF5 file", "give the folder")
            self.assertTrue(result.stderr.isascii(), result.stderr)


class EvalTest(TrainedTest):
    def test_it_repeats_the_run_s_own_evaluation(self):
        told = [m for m in kt.metrics(self.trained) if m.get("event") == "eval"][-1]
        for ranks, batch in ((None, "1"), (2, "3"), (3, "8")):
            shown = self.assert_ok(kt.run(["eval", self.trained, "--checkpoint", "latest", "--batch", batch], ranks))
            self.assertIn(f"step=20 loss={told['val_loss']:.4f} tokens={told['val_tokens']} ", shown.stdout)
            self.assertIn("  domain=law loss=", shown.stdout)

    def test_a_checkpoint_without_its_manifest(self):
        run = self.folder / "run"
        shutil.copytree(self.trained, run)
        for manifest in (run / "checkpoints").glob("step-*/manifest.json"):
            manifest.unlink()
        for command in ("eval", "inspect"):
            said = self.assert_error(kt.run([command, run, "--checkpoint", "step:20"]), 4, "manifest.json")
            self.assertNotIn("was removed while", said.stderr)

    def test_other_validation_documents_and_precision_by_override(self):
        shown = self.assert_ok(kt.run(["eval", self.trained, "--set", "data.validation={documents: [text0.txt]}"]))
        told = [m for m in kt.metrics(self.trained) if m.get("event") == "eval"][-1]
        self.assertNotIn(f"tokens={told['val_tokens']} ", shown.stdout)
        self.assert_ok(kt.run(["eval", self.trained, "--set", "train.precision=bf16"], 2))

    def test_a_corpus_that_is_validation_only(self):
        whole = ["--set", "data.validation={documents: ['*']}"]
        for ranks in (None, 2):
            shown = self.assert_ok(kt.run(["eval", self.trained, *whole], ranks))
            self.assertRegex(shown.stdout, r"step=20 loss=\d+\.\d+ tokens=[1-9]\d* unigram_entropy=[\d.]+ "
                                           r"train_unigram_cross_entropy=n/a\n  domain=law loss=")
        other = kt.corpus({"news": {"one.txt": kt.words(300, 77)}}, options=[
            "--tokenizer", str(kt.corpus().parent / "tokenizer.model")])
        shown = self.assert_ok(kt.run(["eval", self.trained, "--set", f"data.train={other}", *whole], 2))
        self.assertIn("  domain=news loss=", shown.stdout)

    def test_a_corpus_of_a_larger_vocabulary(self):
        other = kt.corpus({"law": {"a.txt": kt.words(2000, 3) + "\u00e4\u00f6\u00fc" * 40}}, vocab=310)
        self.assert_error(kt.run(["eval", self.trained, "--set", f"data.train={other}"], 2), 3, other,
                          "a vocabulary of 310, the model has 300")

    def test_another_model_is_refused(self):
        for override in ("model.heads=4", "model.norm_eps=1", "model.layers=1", "model={heads: 4}"):
            self.assert_error(kt.run(["eval", self.trained, "--set", override], 2), 2, f"--set {override}: ",
                              "are evaluated as what they are")

    def test_a_damaged_configuration_is_a_damaged_checkpoint(self):
        copy = self.folder / "copy"
        shutil.copytree(self.trained, copy)
        folder = copy / "checkpoints" / "step-000020"
        for config in ("optim: [1", "", "model: {}\n"):
            train_testing.rewrite_manifest(folder, lambda manifest, text=config: manifest.update(config=text))
            for args in (["eval", copy], ["sample", copy], ["inspect", copy, "--config"]):
                self.assert_error(kt.run([*args, "--checkpoint", "latest"]), 4,
                                  f"{folder}: the configuration in this checkpoint is damaged")
            self.assert_ok(kt.run(["inspect", copy]))

    def test_what_is_refused(self):
        rows = ((["--checkpoint", "step:7"], 4, "step-000007: no such checkpoint"),
                (["--checkpoint", "step:x"], 2, "expected step:N with a number"),
                (["--checkpoint", "step:20x"], 2, "expected step:N with a number"),
                (["--checkpoint", "first"], 2, "expected best, latest or step:N"),
                (["--set", "data.validation.documents=[none]"], 2, "give either documents or a fraction"),
                (["--set", "data.train=none/manifest.json"], 3, "none/manifest.json"),
                (["--batch", "0"], 2, "--batch"))
        for args, code, fragment in rows:
            self.assert_error(kt.run(["eval", self.trained, *args], 2), code, fragment)


if __name__ == "__main__":
    unittest.main()
