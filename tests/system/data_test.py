"""Documents, corpora, validation sets and mixtures that are broken, empty, tiny or changed."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import unittest

import k25_testing as kt


def windows(count, seed=0):
    """A domain whose documents give about `count` training windows of 32 tokens."""
    return {"text.txt": kt.words(max(8, 16 * count), seed)}


class PrepareTest(kt.K25Test):
    def prepare(self, domains, vocab=300):
        folders = kt.write_sources(self.folder / "in", domains)
        return kt.run(["prepare", *folders, "--out", self.folder / "out", "--vocab", str(vocab)])

    def refuse(self, domains, code, *fragments, vocab=300):
        self.assert_error(self.prepare(domains, vocab), code, *fragments)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name != "in"], [], "something was left behind")

    def test_text_that_is_not_utf8(self):
        self.refuse({"law": {"a.txt": kt.words(200, 1), "b.txt": b"good \xff bad\n"}}, 3, "in/law/b.txt", "UTF-8", "5")

    def test_damaged_json_lines_whatever_their_name(self):
        lines = ['{"prompt":"q1","response":"a1"}', '{"prompt":"q2","response":"a2"}']
        for name in ("a.ndjson", "a.json", "a.txt", "a.JSONL", "a"):
            for bad in ('{"prompt":"cut', '{"id":1,"content":"one"}', "plain"):
                self.refuse({"law": {name: "\n".join([*lines, bad])}}, 3, f"in/law/{name}:3:", "column 1"
                            if bad == "plain" else "")
                self.refuse({"law": {name: "\n".join([bad, *lines]) if bad != "plain" else '{"id":1}\n{"id":2}'}}, 3,
                            f"in/law/{name}:1:")
                shutil.rmtree(self.folder / "in")
        for text in ('[{"text":"a"}]', '[\n{"text":"a"},\n{"te', '{\n"text": "a"\n}'):
            self.refuse({"law": {"a.json": text}}, 3, "in/law/a.json: ", "one object a line")

    def test_other_json_is_text(self):
        made = self.assert_ok(self.prepare({"law": {"package.json": '{\n  "name": "a",\n  "n": [1, 2]\n}\n',
                                                    "one.json": '{"name": "a"}\n', "b.txt": kt.words(200, 1),
                                                    "c.ndjson": '{"text": "x"}\n', "d": '{"text": "y"}\n'}}))
        self.assertIn("5 documents", made.stdout)
        self.assertIn("law/d is read as JSON lines", made.stdout)
        self.assertNotIn("package.json is read", made.stdout)

    def test_standard_output_that_takes_nothing(self):
        folders = kt.write_sources(self.folder / "in", {"law": {"a.txt": kt.words(200, 1)}})
        with open("/dev/full", "w") as full:
            process = kt.start(["prepare", *folders, "--out", self.folder / "out", "--vocab", "300"], stdout=full)
            result = kt.finish(process)
        self.assert_error(result, 4, "standard output cannot be written", self.folder / "out", "complete")
        self.assert_ok(kt.run(["inspect", self.folder / "out"]))

    def test_utf16_text(self):
        self.refuse({"law": {"a.txt": kt.words(200, 1).encode("utf-16")}}, 3, "in/law/a.txt")

    def test_the_reserved_character(self):
        self.refuse({"law": {"a.txt": "a \u2581 b\n" + kt.words(200, 1)}}, 3, "in/law/a.txt", "U+2581")

    def test_an_empty_directory(self):
        self.refuse({"law": {}}, 3, "in/law")

    def test_a_file_of_0_bytes(self):
        self.refuse({"law": {"a.txt": kt.words(200, 1), "empty.txt": ""}}, 3, "in/law/empty.txt", "empty")

    def test_a_directory_that_is_missing_or_a_file(self):
        out = ["--out", self.folder / "out"]
        self.assert_error(kt.run(["prepare", self.folder / "none", *out]), 2, self.folder / "none", "no such folder")
        (self.folder / "file").write_text("x")
        self.assert_error(kt.run(["prepare", self.folder / "file", *out]), 3, self.folder / "file")
        self.assertFalse((self.folder / "out").exists())

    def test_a_broken_json_line(self):
        good = kt.dialogue(5, 5, 1)
        self.refuse({"law": {"a.jsonl": good + "\n" + '{"text": \n'}}, 3, "a.jsonl:2:")
        shutil.rmtree(self.folder / "in")
        self.refuse({"law": {"a.jsonl": good + "\n" + '{"prompt": "x"}\n'}}, 3, "a.jsonl:2:", "response")

    def test_a_conversation_without_a_response(self):
        mute = json.dumps({"messages": [{"role": "user", "content": kt.words(60, 99)}]})
        self.refuse({"law": {"a.jsonl": mute + "\n"}}, 3, "a.jsonl:1:", "no assistant message")

    def test_a_vocabulary_out_of_range_names_the_range(self):
        sources = {"law": {"a.txt": kt.words(300, 1)}}
        for vocab in (-1, 0, 257, 100000, 2147483647):
            self.refuse(sources, 2, vocab, "258", vocab=vocab)
        self.refuse(sources, 2, "99999999999", vocab=99999999999)

    def test_an_output_that_exists_or_cannot_be_made(self):
        sources = {"law": {"a.txt": kt.words(200, 1)}}
        (self.folder / "out").mkdir()
        self.assert_error(self.prepare(sources), 3, self.folder / "out", "exists")
        self.assertEqual(list((self.folder / "out").iterdir()), [])
        (self.folder / "file").write_text("")
        folders = kt.write_sources(self.folder / "in", sources)
        self.assert_error(kt.run(["prepare", *folders, "--out", self.folder / "file" / "x", "--vocab", "300"]), 3,
                          self.folder / "file")

    def test_a_full_disk_leaves_nothing(self):
        folders = kt.write_sources(self.folder / "in", {"law": {"a.txt": kt.words(3000, 1)}})
        result = kt.run(["prepare", *folders, "--out", self.folder / "out", "--vocab", "300"], file_limit=9000)
        self.assert_error(result, 3, "File too large")
        self.assertEqual([p.name for p in self.folder.iterdir()], ["in"])

    def start_slow(self, out="out"):
        """A prepare that works long enough to be met; waits until it holds its lock."""
        sources = {"law": {f"{i}.txt": kt.words(20000, i) for i in range(40)}}
        if not (self.folder / "in").exists():
            kt.write_sources(self.folder / "in", sources)
        process = kt.start(["prepare", self.folder / "in" / "law", "--out", self.folder / out, "--vocab", "2000"])
        kt.wait_for(lambda: list(self.folder.glob(f".{out}.prepare-??????")), "the work folder")
        return process

    def test_a_signal_leaves_nothing(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process = self.start_slow()
            os.kill(process.pid, number)
            result = kt.finish(process)
            self.assertEqual(result.code, 128 + number, str(result))
            self.assertEqual(result.errors, [], str(result))
            self.assertEqual([p.name for p in self.folder.iterdir()], ["in"])

    def test_what_a_killed_one_left_is_removed_by_the_next(self):
        process = self.start_slow()
        os.kill(process.pid, signal.SIGKILL)
        kt.finish(process)
        self.assertEqual(len(list(self.folder.glob(".out.prepare-*"))), 2, "a lock and a work folder")
        shutil.rmtree(self.folder / "in")
        self.assert_ok(self.prepare({"law": {"a.txt": kt.words(200, 1)}}))
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["in", "out"])

    def test_two_at_once_into_one_folder(self):
        first = self.start_slow()
        os.kill(first.pid, signal.SIGSTOP)  # alive, and not done before the second one looks
        second = kt.run(["prepare", self.folder / "in" / "law", "--out", self.folder / "out"])
        self.assertEqual(second.code, 3, str(second))
        self.assertEqual(len(second.errors), 1, str(second))
        self.assertIn(f"{self.folder / 'out'}: process {first.pid} on host", second.stderr)
        self.assertIn("choose another --out", second.stderr)
        self.assertTrue(list(self.folder.glob(".out.prepare-??????")), "the first one's work stays")
        os.kill(first.pid, signal.SIGTERM)
        os.kill(first.pid, signal.SIGCONT)
        self.assertEqual(kt.finish(first).code, 128 + signal.SIGTERM)

    def test_an_output_inside_the_documents(self):
        folders = kt.write_sources(self.folder / "in", {"law": {"a.txt": kt.words(200, 1)}})
        self.assert_error(kt.run(["prepare", *folders, "--out", folders[0] / "out"]), 2, folders[0] / "out",
                          "lies in the folder", "choose an --out outside")
        self.assertEqual([p.name for p in folders[0].iterdir()], ["a.txt"])

    def test_a_domain_that_loses_all_its_documents(self):
        text = kt.words(200, 1)
        result = self.assert_ok(self.prepare({"a": {"x.txt": text}, "b": {"y.txt": text}}))
        self.assertEqual(len(result.warnings), 1, str(result))
        self.assertIn("domain 'b' is empty: its documents (1) are all dropped as duplicates", result.warnings[0])
        trained = self.assert_ok(self.train({"data.validation": None, "train.steps": 1},
                                            manifest=self.folder / "out" / "manifest.json"))
        self.assertEqual(len([w for w in trained.warnings if "domain 'b' has no training documents" in w]), 1, trained)

    def test_a_folder_whose_name_is_not_utf8(self):
        self.refuse({"law": {"a.txt": kt.words(200, 1)}, "bad\udcff": {"b.txt": kt.words(200, 2)}}, 3, "UTF-8")

    def test_a_tokenizer_that_is_none(self):
        (self.folder / "in").mkdir()
        (self.folder / "in" / "tok").write_text("no model")
        folders = kt.write_sources(self.folder / "in", {"law": {"a.txt": kt.words(200, 1)}})
        self.assert_error(kt.run(["prepare", *folders, "--out", self.folder / "out", "--tokenizer",
                                  self.folder / "in" / "tok"]), 3, "in/tok")
        self.assertFalse((self.folder / "out").exists())


class CorpusTest(kt.K25Test):
    def copy(self):
        folder = self.folder / "corpus"
        shutil.copytree(kt.corpus().parent, folder)
        return folder

    def refuse(self, folder, *fragments, changes=None, ranks=2):
        result = self.train(changes, ranks, manifest=folder / "manifest.json")
        self.assert_error(result, 3, *fragments)
        self.assertFalse((self.run_dir / "checkpoints").exists())
        self.assertFalse((self.run_dir / "metrics.jsonl").exists())

    def test_a_corpus_cut_by_one_byte(self):
        folder = self.copy()
        tokens = folder / "tokens-00000.h5"
        size = tokens.stat().st_size
        with open(tokens, "r+b") as file:
            file.truncate(size - 1)
        self.refuse(folder, tokens, f"{size}", f"{size - 1}", "truncated or unfinished")

    def test_every_other_damage_of_the_files(self):
        for name in ("tokens-00000.h5", "tokenizer.model", "manifest.json"):
            for damage in ("empty", "missing", "flipped", "text"):
                folder = self.copy()
                path = folder / name
                content = bytearray(path.read_bytes())
                content[len(content) // 2] ^= 0x10
                if damage == "missing":
                    path.unlink()
                else:
                    path.write_bytes({"empty": b"", "flipped": bytes(content), "text": b"words\n"}[damage])
                with self.subTest(name=name, damage=damage):
                    self.refuse(folder, path if damage != "flipped" else folder, ranks=None)
                shutil.rmtree(folder)

    def test_a_corpus_that_is_missing(self):
        self.refuse(self.folder / "none", self.folder / "none" / "manifest.json", "No such file or directory")

    def test_the_model_vocabulary_must_cover_the_corpus(self):  # A06
        told = f"model.vocab: 299 is below the vocabulary of the corpus {kt.corpus()}, which is 300; set model.vocab to"
        result = self.train({"model.vocab": 299}, 2)
        self.assert_error(result, 2, told)
        self.assertRegex(result.stderr, rf"k25: error: {self.config_path}:\d+:\d+: {told} at least 300")
        self.assert_error(self.train(args=["--set", "model.vocab=299"]), 2, f"--set model.vocab=299: {told}")
        self.assert_ok(self.train({"model.vocab": 301, "train.steps": 1}))

    def test_a_split_must_match_and_leave_something(self):
        self.refuse(kt.corpus().parent, "data.validation.documents", "'nothing*'",
                    changes={"data.validation": {"documents": ["nothing*"]}})
        self.refuse(kt.corpus().parent, "train", changes={"data.validation": {"documents": ["*"]}})

    def test_counters_are_64_bit(self):  # A23
        result = self.train({"train.steps": 3 * 10**9, "optim.schedule": {"kind": "wsd", "decay": 25 * 10**8},
                             "debug.inject": {"step": 3, "tensor": "embedding", "value": "nan"},
                             "numeric": {"on_nan": "stop"}})
        self.assert_error(result, 5)
        lines = [l for l in result.stdout.splitlines() if l.startswith("step=")]
        self.assertEqual(len(lines), 3)
        self.assertTrue(lines[0].startswith("step=1/3000000000 "), lines[0])
        self.assertNotIn("=-", result.stdout)


class ValidationTest(kt.K25Test):
    def validation_loss(self, ranks, changes=None):
        run_dir = self.folder / f"run{ranks}"
        changes = {"data.validation": {"documents": ["text7.txt"]}, "train.steps": 1, **(changes or {})}
        result = self.assert_ok(self.train(changes, ranks, run_dir=run_dir))
        return result, [m for m in kt.metrics(run_dir) if m.get("event") == "eval"]

    def test_a_validation_set_smaller_than_the_ranks(self):  # A15, A17
        changes = {"data.sequence": 512, "train.batch": 4}  # one window
        _, alone = self.validation_loss(1, changes)
        _, four = self.validation_loss(4, changes)
        self.assertEqual(len(alone), 2)
        self.assertEqual([e["val_tokens"] for e in alone], [e["val_tokens"] for e in four])
        self.assertEqual(alone[0]["val_loss"], four[0]["val_loss"])
        self.assertAlmostEqual(alone[1]["val_loss"], four[1]["val_loss"], delta=1e-6)

    def test_ranks_with_unequal_numbers_of_validation_batches(self):  # A17
        changes = {"train.batch": 6, "train.micro_batch": 1}
        _, alone = self.validation_loss(1, changes)
        _, three = self.validation_loss(3, changes)
        self.assertGreater(alone[0]["val_tokens"], 64)
        self.assertEqual(alone[0]["val_tokens"], three[0]["val_tokens"])
        self.assertEqual(alone[0]["val_loss"], three[0]["val_loss"])

    def test_eval_of_a_run_on_any_number_of_ranks(self):
        self.validation_loss(1)
        shown = [self.assert_ok(kt.run(["eval", self.folder / "run1", "--batch", batch], ranks)).stdout
                 for ranks, batch in ((None, "1"), (2, "2"), (3, "4"))]
        self.assertRegex(shown[0], r"step=1 loss=\d+\.\d+ tokens=\d+ unigram_entropy=")
        self.assertEqual(shown[0], shown[1])
        self.assertEqual(shown[0], shown[2])

    def test_no_validation_data_is_a_warning(self):  # A17
        result = self.assert_ok(self.train({"data.validation": None, "train.steps": 2, "eval.every": 1}, 2))
        self.assertIn("warning: no validation data (data.validation)", result.stdout)
        self.assertEqual([m for m in kt.metrics(self.run_dir) if "event" in m], [])
        shown = self.assert_ok(kt.run(["eval", self.run_dir], 2))
        self.assertIn("loss=n/a", shown.stdout)



class MixtureTest(kt.K25Test):
    def test_fewer_windows_than_ranks(self):  # A16
        manifest = kt.corpus({"law": windows(2)})
        changes = {"data.validation": None, "data.sequence": 64, "train.batch": 12, "train.steps": 5,
                   "reduce.slots": 12}
        self.assert_ok(self.train(changes, 4, manifest=manifest, run_dir=self.folder / "four"))
        self.assert_ok(self.train(changes, 1, manifest=manifest, run_dir=self.folder / "one"))
        self.assertEqual(kt.state_hash(self.folder / "four"), kt.state_hash(self.folder / "one"))
        self.assertGreater(kt.steps(self.folder / "four")[-1]["epoch"], 2.0)

    def test_the_end_of_an_epoch_can_stop_the_run(self):  # A16
        result = self.train({"data.validation": None, "data.on_exhausted": "stop", "train.steps": 500}, 2,
                            manifest=kt.corpus({"law": windows(8)}))
        self.assert_error(result, 3, "law", "data.on_exhausted")

    def test_a_rare_tiny_domain_wraps(self):  # A18
        manifest = kt.corpus({"big": windows(20), "tiny": windows(1, 9)})
        self.assert_ok(self.train({"data.mixture": {"weights": {"big": 0.02, "tiny": 0.98}}, "train.steps": 40,
                                   "data.validation": None}, 2, manifest=manifest))
        drawn = [m["domain_samples"] for m in kt.steps(self.run_dir)]
        tiny = sum(d["tiny"] for d in drawn)
        self.assertGreater(tiny, 40 * 8 * 0.9)
        self.assertEqual(sum(d["big"] for d in drawn) + tiny, 40 * 8)

    def test_a_domain_of_weight_0_is_never_drawn(self):  # A18
        manifest = kt.corpus({"big": windows(20), "tiny": windows(1, 9)})
        self.assert_ok(self.train({"data.mixture": {"weights": {"big": 1, "tiny": 0}}, "train.steps": 20,
                                   "data.validation": None}, manifest=manifest))
        self.assertEqual(sum(m["domain_samples"]["tiny"] for m in kt.steps(self.run_dir)), 0)


class ChangedDataTest(kt.K25Test):
    def other_corpus(self, count):
        """With the tokenizer of change()'s first one."""
        return kt.corpus({"law": windows(count)},
                         options=["--tokenizer", kt.corpus({"law": windows(30)}).parent / "tokenizer.model"])

    def tree_but_lock(self):
        return {name: content for name, content in kt.tree(self.run_dir).items() if name != "lock"}

    def test_another_tokenizer_is_refused_whatever_is_allowed(self):
        other = kt.corpus({"law": windows(60)}, vocab=290)
        self.change(other)
        first = kt.corpus({"law": windows(30)})
        for changes in ({"train.allow_data_change": True, "train.steps": 9},
                        {"train.init_from": str(self.run_dir), "run.dir": str(self.folder / "next")}):
            before = self.tree_but_lock()
            result = self.train({"data.validation": None, **changes}, 2, manifest=other)
            self.assert_error(result, 3, "step-000003", *(hashlib.sha256((folder / "tokenizer.model").read_bytes()).hexdigest()
                                for folder in (first.parent, other.parent)), "k25 prepare ... --tokenizer FILE")
            self.assertEqual(self.tree_but_lock(), before)
            self.assertFalse((self.folder / "next").exists())

    def change(self, to, steps=6):
        """Trains 3 steps on one corpus and goes on with another."""
        first = kt.corpus({"law": windows(30)})
        self.assert_ok(self.train({"train.steps": 3, "data.validation": None}, 2, manifest=first))
        digest = json.loads(self.shown_digest(first))
        return digest, self.train({"train.steps": steps, "data.validation": None}, 2, manifest=to)

    def test_a_corpus_without_its_tokenizer_is_shown_as_a_damaged_corpus(self):
        manifest = kt.corpus({"law": windows(2)})
        copy = self.folder / "damaged"
        shutil.copytree(manifest.parent, copy)
        (copy / "tokenizer.model").unlink()
        self.assert_error(kt.run(["inspect", copy]), 3, copy / "tokenizer.model")

    def damage_while_training(self, damage, *fragments):
        """Trains on two ranks and damages the corpus file under way: one error, exit code 3."""
        copy = self.folder / "copy"
        shutil.copytree(kt.corpus({"law": windows(30)}).parent, copy)
        path = copy / "tokens-00000.h5"
        config = self.write_config({"train.steps": 100000, "data.validation": None, "checkpoint.every": 100000},
                                   manifest=copy / "manifest.json")
        process = kt.start(["train", config], 2)
        log = self.run_dir / "metrics.jsonl"
        kt.wait_for(lambda: log.exists() and log.read_text().count("\n") > 3, "the first steps")
        damage(path)
        self.assert_error(kt.finish(process), 3, path, *fragments)

    def test_a_corpus_that_is_shortened_while_training(self):
        self.damage_while_training(lambda path: os.truncate(path, 3000), "was shortened", "now 3000")

    def test_a_corpus_that_is_overwritten_while_training(self):
        def overwrite(path):
            with open(path, "r+b") as file:
                file.seek(4096)
                file.write(b"\xff" * 64)

        self.damage_while_training(overwrite, "was written to while it was in use")

    def test_a_pipe_in_place_of_a_corpus_file(self):
        copy = self.folder / "copy"
        shutil.copytree(kt.corpus({"law": windows(30)}).parent, copy)
        for name in ("tokens-00000.h5", "tokenizer.model", "manifest.json"):
            (copy / name).unlink()
            os.mkfifo(copy / name)
            self.assert_error(self.train(manifest=copy / "manifest.json"), 3, copy / name, "is no regular file")
        self.assert_error(self.train(manifest="/dev/zero"), 3, "/dev/zero", "is no regular file")

    def shown_digest(self, manifest):
        shown = kt.run(["inspect", manifest]).stdout
        return json.dumps(next(l.split()[1] for l in shown.splitlines() if l.strip().startswith("digest")))

    def test_a_changed_corpus_is_refused_with_both_digests(self):  # A22
        for count in (60, 2):  # longer; shorter than what was consumed
            other = self.other_corpus(count)
            digest, result = self.change(other)
            before = kt.tree(self.run_dir / "checkpoints")
            self.assert_error(result, 3, digest, json.loads(self.shown_digest(other)), "train.allow_data_change")
            self.assertEqual(kt.tree(self.run_dir / "checkpoints"), before)
            shutil.rmtree(self.run_dir)

    def test_a_changed_corpus_may_be_allowed(self):  # A22
        other = self.other_corpus(2)
        self.change(other, steps=3)
        result = self.assert_ok(self.train({"train.steps": 6, "data.validation": None,
                                            "train.allow_data_change": True}, 2, manifest=other))
        self.assertEqual(len([w for w in result.warnings if "a new epoch starts on the new data" in w]), 1, result)
        self.assertEqual([m["step"] for m in kt.steps(self.run_dir)], [1, 2, 3, 4, 5, 6])


if __name__ == "__main__":
    unittest.main()
