"""Bad configurations and command lines: exit code 2, one message from one rank, nothing written."""
import json
import os
import re
import unittest

import k25_testing as kt


class ConfigTest(kt.K25Test):
    def refuse(self, *fragments, changes=None, args=(), ranks=2, code=2):
        """The configuration fails before anything is written."""
        result = self.train(changes, ranks, args=args)
        self.assert_error(result, code, *fragments)
        written = [p.name for p in self.run_dir.iterdir()] if self.run_dir.exists() else []
        self.assertLessEqual(set(written), {"lock"}, "a refused run writes nothing")
        return result

    def refuse_text(self, text, *fragments, ranks=None):
        self.config_path.write_bytes(text if isinstance(text, bytes) else text.encode())
        result = self.assert_error(kt.run(["train", self.config_path], ranks), 2, *fragments)
        self.assertFalse(self.run_dir.exists())
        return result

    def good_text(self):
        return kt.yaml_of(kt.tiny(self.run_dir, kt.corpus()))

    def line_of(self, text, key):
        return 1 + next(i for i, line in enumerate(text.splitlines()) if line.strip().startswith(key))

    def test_misspelt_keys_are_all_listed(self):  # A01
        self.write_config({"optim.weight_deacy": 0.1, "optimiser.type": "adamw", "optim.freeze": ["a"],
                           "train.mixtur": 1})
        text = self.config_path.read_text()
        at = f"{self.config_path}:{self.line_of(text, 'weight_deacy')}:3: "
        result = self.assert_error(
            kt.run(["train", self.config_path], 2), 2,
            at + "unknown key 'optim.weight_deacy' (did you mean 'weight_decay'?)",
            "unknown key 'optimiser' (did you mean 'optim'?)", "unknown key 'train.mixtur'")
        self.assertEqual(result.stderr.count("unknown key"), 3)
        self.assertFalse(self.run_dir.exists())

    def test_a_key_hidden_in_a_list_is_refused(self):  # A01
        self.refuse("optim.freeze: expected a list of texts", changes={"optim.freeze": [{"weight_deacy": 1}]})

    def test_duplicate_keys_name_both_lines(self):  # A02
        text = self.good_text().replace("  lr: 0.001\n", "  lr: 0.001\n" + "  # filler\n" * 30 + "  lr: 0.00001\n")
        first = self.line_of(text, "lr:")
        self.refuse_text(text, f"{self.config_path}:{first + 31}:3: duplicate key 'lr'",
                         f"first given at {self.config_path}:{first}:3", ranks=2)

    def test_tab_indentation_names_line_and_tab(self):  # A03
        text = self.good_text().replace("  lr:", "\tlr:")
        self.refuse_text(text, f"{self.config_path}:{self.line_of(text, 'lr:')}:1: a tab is used for indentation")

    def test_tab_separator_crlf_and_byte_order_mark_train(self):  # A03
        text = self.good_text().replace("lr: ", "lr:\t").replace("\n", "\r\n")
        self.config_path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        self.assert_ok(kt.run(["train", self.config_path, "--set", "train.steps=1"]))

    def test_missing_and_mistyped_values(self):  # A04
        rows = {"train.steps": ("twenty", "expected an integer in [1, 9007199254740992], got the quoted text 'twenty'"),
                "train.batch": (-4, "expected an integer"),
                "run.seed": ([1], "got a list"),
                "model.layers": (2.5, "got '2.5'"),
                "optim.betas": ([0.9], "two numbers in [0, 1)"),
                "model.vocab": (None, "missing key 'model.vocab' (integer")}
        self.write_config({key: value for key, (value, _) in rows.items()})
        result = self.assert_error(kt.run(["train", self.config_path]), 2)
        for key, (_, fragment) in rows.items():
            line = next((l for l in result.stderr.splitlines() if key in l), "")
            self.assertRegex(line, re.escape(str(self.config_path)) + r":\d+:\d+: ")
            self.assertIn(fragment, line, result)

    def test_octal_nan_and_exponents(self):  # A04
        for value, key, fragment in (("010", "run.seed", "without leading zeros, got '010'"),
                                     (".nan", "optim.lr", "a number in [0, 1e+06], got '.nan'"),
                                     (".inf", "optim.lr", "got '.inf'"), ("1e-3", "train.steps", "got '1e-3'")):
            shown = kt.run(["config", self.write_config(), "--set", f"{key}={value}"])
            self.assert_error(shown, 2, f"--set {key}={value}: {key}: expected ", fragment)
        shown = self.assert_ok(kt.run(["config", self.write_config(), "--set", "train.steps=1e6"]))
        self.assertIn("steps: 1000000 ", shown.stdout)

    def test_no_space_after_a_colon(self):  # A04
        self.refuse_text(self.good_text().replace("  lr: ", "  lr:"), "'optim' must be a map", "a space after ':'")

    def test_empty_file_second_document_and_broken_text(self):  # A04
        self.refuse_text("", f"{self.config_path}: the file is empty")
        self.refuse_text(self.good_text() + "---\nrun: {seed: 8}\n", "a second document ('---') begins here")
        self.refuse_text(self.good_text() + "\x04\nlog: {metrics: nonsense}\n", "control character (byte 4)")
        self.refuse_text(self.good_text().encode() + b"# \xff\n", "the text is not UTF-8")
        self.refuse_text("optim: [1, 2", f"{self.config_path}:")

    def test_a_file_that_cannot_be_read(self):
        self.assert_error(kt.run(["train", self.folder / "none.yaml"], 2), 2, self.folder / "none.yaml",
                          "No such file or directory")
        self.assert_error(kt.run(["train", self.folder], 2), 2, self.folder, "directory")
        os.mkfifo(self.folder / "pipe")
        (self.folder / "huge").write_text("# " + "x" * (1 << 20))
        for path, text in (("/dev/zero", "is no regular file"), (self.folder / "pipe", "is no regular file"),
                           (self.folder / "huge", "has 1048578 bytes; a config has at most 1048576")):
            for args in (["config", path], ["train", path], ["bench", "step", "--config", path]):
                self.assert_error(kt.run(args), 2, f"{path}: {text}")
        config = self.write_config()
        for args, noun in ((["config"], "config"), (["config", "--import-ds-config"], "DeepSpeed config"),
                           (["plan", config, "--gpus", 2, "--ceilings"], "list of ceilings"),
                           (["bench", "comm", "--ceilings"], "list of ceilings")):
            for path, text in ((self.folder, f"is a directory, not a {noun}"),
                               ("/dev/zero", f"is no regular file (a pipe or a device); write the {noun} to a file"),
                               (self.folder / "huge", f"has 1048578 bytes; a {noun} has at most 1048576")):
                self.assert_error(kt.run([*args, path]), 2, f"{path}: {text}")

    def test_paths_inside_a_config_tell_their_key(self):
        none = self.folder / "none"
        result = self.refuse(changes={"data.train": str(none)}, code=3)
        self.assertRegex(result.stderr, rf"{none}: .*No such file.* \(data.train: {self.config_path}:\d+:\d+\)")
        self.refuse(f"(train.init_from: --set train.init_from={none})", args=["--set", f"train.init_from={none}"], code=4)
        self.refuse(f"data.train: '{kt.corpus().parent}' is a folder; name the manifest in it: {kt.corpus()}",
                    changes={"data.train": str(kt.corpus().parent)})

    def test_batch_must_multiply_up(self):  # A05
        path = self.write_config({"train.batch": 1024, "train.accumulation": 8, "train.micro_batch": None})
        for ranks, micro in ((8, 16), (16, 8), (32, 4)):
            shown = self.assert_ok(kt.run(["config", path, "--ranks", str(ranks)]))
            self.assertRegex(shown.stdout, rf"micro_batch: auto +# default; here {micro}\n")
        for ranks, near in ((6, "4 and 8"), (12, "8 and 16"), (24, "16 and 32"), (48, "32 and 64"), (256, "128")):
            self.assert_error(kt.run(["config", path, "--ranks", str(ranks)]), 2,
                              f"1024 = micro_batch auto x accumulation 8 x {ranks} data ranks",
                              f"legal numbers of data ranks nearby: {near}\n")
        self.refuse("train.micro_batch: micro_batch 5 x accumulation 8 = 40 does not divide train.batch 1024 at any "
                    "number of ranks; a train.batch that fits 2 data ranks: 80\n",
                    changes={"train.batch": 1024, "train.accumulation": 8, "train.micro_batch": 5})

    def test_refused_values(self):
        self.refuse("train.precision: expected one of fp32 | bf16", "fp16", changes={"train.precision": "fp16"})
        self.refuse("model.preset: 'quickstrat' is unknown; known presets: quickstart",
                    changes={"model.preset": "quickstrat"})
        self.refuse("3 heads do not divide hidden 16", changes={"model.heads": 3})
        self.refuse("must equal the 2 ranks of this run", changes={"mesh.replicate": 3})

    def test_override_errors(self):
        shown = self.assert_error(kt.run(["train", self.write_config(), "--set", "foo=1"]), 2, "unknown key 'foo'")
        self.assertNotIn("did you mean", shown.stderr)
        for override, fragment in (("optim.lr", "expected key=value"), ("optim.lrr=1", "did you mean 'lr'?"),
                                   ("optim.lr=fast", "expected a number"), ("optim.lr.x=1", "below a key"),
                                   ("optim.betas=[0.9", "--set optim.betas=[0.9")):
            self.refuse(f"--set {override}", fragment, args=["--set", override], ranks=None)

    def test_overrides_reach_every_rank(self):
        self.assert_ok(self.train(ranks=2, args=["--set", "train.steps=2", "--set", "optim.betas=[0.5, 0.6]"]))
        self.assertEqual(len(kt.steps(self.run_dir)), 2)
        self.assertIn("betas: [0.5, 0.6]", (self.run_dir / "config.yaml").read_text())

    def test_mixture_weights(self):  # A18
        self.refuse("data.mixture.weights", "'lwa'", "law", changes={"data.mixture": {"weights": {"lwa": 1}}}, code=2)
        self.refuse("data.mixture.weights", "sum", changes={"data.mixture": {"weights": {"law": 0}}})
        self.refuse("data.mixture.weights: expected a map of domain names to weights >= 0",
                    changes={"data.mixture": {"weights": {"law": -1}}})

    def test_a_parameter_to_inject_into_must_exist(self):
        self.refuse("debug.inject.tensor", "'layers.9.nothing' is no parameter",
                    changes={"debug.inject": {"step": 1, "tensor": "layers.9.nothing"}})
        self.refuse("debug.inject.index: 1099511627776", "'embedding'",
                    changes={"debug.inject": {"step": 1, "tensor": "embedding", "index": 1 << 40}})

    def test_a_freeze_pattern_must_match(self):
        self.refuse("optim.freeze", "'lyers.*'", changes={"optim.freeze": ["lyers.*"]})

    def test_the_stored_config_gives_the_same_run(self):
        self.assert_ok(self.train({"optim.weight_decay": 0.1}))
        stored = self.run_dir / "config.yaml"
        again = self.folder / "again"
        self.assert_ok(kt.run(["train", stored, "--set", f"run.dir={again}"]))
        self.assertEqual(kt.state_hash(again), kt.state_hash(self.run_dir))
        shown = self.assert_ok(kt.run(["config", stored]))
        plain = "\n".join(re.sub(r"  # .*", "", line) for line in shown.stdout.splitlines()) + "\n"
        self.assertEqual(plain, stored.read_text())

    def test_the_documented_keys_are_those_of_the_program(self):
        keys = self.assert_ok(kt.run(["config", "--keys"])).stdout
        listed = {line.split()[0] for line in keys.splitlines()}
        docs = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "configuration.md")
        with open(docs, encoding="utf-8") as file:
            rows = re.findall(r"^\| `([a-z_0-9.]+)` \| (.*) \| (.*) \| (.*) \|$", file.read(), re.M)
        self.assertEqual({row[0] for row in rows}, listed)
        self.assertEqual(len(rows), len(listed), "a key is documented twice")
        for path, kind, default, meaning in rows:
            line = next(l for l in keys.splitlines() if l.split()[0] == path)
            shown = " ".join(line.split()[1:])
            told = " ".join([kind.replace("\\|", "|"), default.strip("`"), meaning.replace("\\|", "|")])
            self.assertEqual(" ".join(told.split()), shown)


class PlaceTest(kt.K25Test):
    """Errors that show only with the model or the corpus name the line of their key, or the --set."""

    def test_each_key_in_the_file_and_by_override(self):
        rows = (("optim.freeze", ["embedding", "lyers.*"], "optim.freeze: 'lyers.*' matches no parameter", 2),
                ("data.mixture.weights", {"law": 1, "lwa": 1}, "data.mixture.weights: mixture weight for unknown", 2),
                ("data.mixture.weights", {"law": 0}, "data.mixture.weights: mixture weights sum to 0", 2),
                ("data.validation", {"documents": ["text0.txt", "nothing*"]}, "data.validation.documents: pattern", 3),
                ("data.validation", {"documents": ["*"]}, "data.validation.documents: the validation split leaves no", 3),
                ("debug.inject", {"step": 1, "tensor": "layer"}, "debug.inject.tensor: 'layer' is no parameter", 2),
                ("debug.inject", {"step": 1, "tensor": "embedding", "index": 10**9}, "debug.inject.index: 1000000000", 2))
        for key, value, fragment, code in rows:
            with self.subTest(key=key, value=value):
                path = self.write_config({"data.validation": None, key: value})
                at = re.escape(str(path))
                result = self.assert_error(kt.run(["train", path]), code, fragment)
                self.assertRegex(result.stderr, rf"k25: error: {at}:\d+:\d+: {re.escape(fragment)}")
                setting = f"{key}={json.dumps(value)}"
                path = self.write_config({"data.validation": None})
                result = self.assert_error(kt.run(["train", path, "--set", setting], 2), code,
                                           f"--set {setting}: {fragment}")

    def test_a_fraction_that_leaves_nothing_is_placed_at_the_fraction(self):
        folders = kt.write_sources(self.folder, {"only": {"a.txt": "one document " * 300}})
        self.assert_ok(kt.run(["prepare", *folders, "--out", self.folder / "one", "--vocab", "258"]))
        path = self.write_config({"data.validation": None}, self.folder / "one" / "manifest.json")
        settings = ["--set", "data.validation.documents=[]", "--set", "data.validation.fraction=0.5"]
        self.assert_error(kt.run(["train", path, *settings]), 3,
                          "k25: error: --set data.validation.fraction=0.5: data.validation.fraction: the validation "
                          "split leaves no training document (1 of 1 documents, 0 of them near-duplicates that follow): "
                          "lower it, or prepare a corpus of more documents")

    def test_the_element_s_own_line(self):
        text = kt.yaml_of(kt.tiny(self.run_dir, kt.corpus())) + "log:\n  metrics: true\n"
        text = text.replace("optim:\n", "optim:\n  freeze:\n    - embedding\n    - lyers.*\n")
        self.config_path.write_text(text)
        line = 1 + text.splitlines().index("    - lyers.*")
        self.assert_error(kt.run(["train", self.config_path]), 2, f"{self.config_path}:{line}:7: optim.freeze: 'lyers.*'")

    def test_a_key_named_later_in_the_message(self):
        path = self.write_config({"model.vocab": 299})
        line = 1 + next(i for i, l in enumerate(path.read_text().splitlines()) if "vocab" in l)
        self.assert_error(kt.run(["train", path]), 2, f"{path}:{line}:10: model.vocab: 299 is below")


class WarningTest(kt.K25Test):
    def test_settings_without_effect_are_told_once_and_the_run_goes_on(self):
        result = self.assert_ok(self.train({"optim.lr": 0, "optim.schedule": {"kind": "wsd", "warmup": 9, "decay": 7},
                                            "debug.kill": {"rank": 5, "step": 1}, "data.sequence": 1 << 15,
                                            "train.batch": 2, "train.steps": 1, "eval.every": 9,
                                            "data.validation": None, "zero.reduce_after": "step"}, 2))
        for key, text in (("optim.lr 0", "has no effect because every update is multiplied by 0"),
                          ("optim.schedule.warmup 9", "is longer than the run of 1 steps"),
                          ("optim.schedule.decay 7", "is longer than the 0 steps after warm-up"),
                          ("zero.reduce_after step", "has no effect because reduce.mode is ordered"),
                          ("debug.kill.rank 5", "has no effect because the ranks of this run are 0 to 1"),
                          ("data.sequence 32768", "is longer than the whole corpus of"),
                          ("eval.every 9", "has no effect because the run has 1 steps"),
                          ("eval.every 9", "has no effect because there is no validation data")):
            told = [w for w in result.warnings if w.startswith(f"k25: warning: {key}: {text}")]
            self.assertEqual(len(told), 1, f"{key}: {result}")
            self.assertIn(f"({self.config_path}:", told[0])
        self.assertEqual(len(result.warnings), 8, str(result))

    def test_a_model_that_is_frozen_as_a_whole(self):
        result = self.assert_ok(self.train({"optim.freeze": ["*"], "train.steps": 1}, 2))
        self.assertEqual(len(result.warnings), 1, str(result))
        self.assertIn('optim.freeze ["*"]: training has no effect because every parameter is frozen', result.warnings[0])

    def test_a_plain_run_has_none(self):
        self.assertEqual(self.assert_ok(self.train(ranks=2)).warnings, [])


class CommandLineTest(kt.K25Test):
    def test_mistakes_are_told_once(self):
        rows = ((["trian", "x.yaml"], "unknown command 'trian' (did you mean 'train'?)"),
                (["bench", "stepp"], "unknown command 'stepp' (did you mean 'step'?)"), ([], "subcommand"), (["train"], "CONFIG"),
                (["train", "a", "--steps", "5"], "--steps"), (["config", "a", "--ranks", "0"], "--ranks"),
                (["config", "a", "--ranks", "many"], "many"), (["bench"], "subcommand"),
                (["sample", "x", "--tokens", "-1"], "--tokens"), (["prepare", "x"], "--out"),
                (["train", "x", "--stes", "3"], "unknown option '--stes' of k25 train (did you mean '--set'?);"),
                (["train", "x", "--steps=3", "--b"],
                 "unknown option '--steps' of k25 train (did you mean '--set train.steps=...'?);"),
                (["train", "--log-formt", "json", "x"], "'--log-formt' of k25 train (did you mean '--log-format'?);"),
                (["train", "x", "--zzzzzz", "--yyy"], "unknown option '--zzzzzz' of k25 train;"),
                (["train", "x", "-q"], "unknown option '-q' of k25 train;"),
                (["--nope"], "unknown option '--nope' of k25;"), (["--hel"], "'--hel' of k25 (did you mean '--help'?);"),
                (["bench", "op", "--rws", "3"], "unknown option '--rws' of k25 bench op (did you mean '--rows'?);"),
                (["doctor", "--fix"], "unknown option '--fix' of k25 doctor;"),
                (["train", "x", "y", "z"], "'y' is one argument more than k25 train takes;"),
                (["train", "x", "foo=1"], "'foo=1' is one argument more than k25 train takes; write --set foo=1;"),
                (["doctor", "a=1"], "'a=1' is one argument more than k25 doctor takes;"))
        for args, fragment in rows:
            self.assert_error(kt.run(args), 2, fragment, "k25 --help")

    def test_mistakes_are_told_once_by_a_job(self):
        for _ in range(3):
            self.assert_error(kt.run(["trian"], 3), 2, "unknown command 'trian'")

    def job(self, *programs):
        """mpirun with one process for each of `programs`."""
        words = [word for args in programs for word in (":", "-np", "1", kt.K25, *map(str, args))]
        begin = kt.time.monotonic()
        process = kt.subprocess.Popen(["mpirun", "-q", *words[1:]], env=kt.environment(), stdout=kt.subprocess.PIPE,
                                      stderr=kt.subprocess.PIPE, start_new_session=True)
        return kt.finish(process, 60, begin)

    def test_ranks_with_different_command_lines(self):
        train = ["train", self.write_config()]
        other = "its command line is not that of rank 0: "
        rows = (([*train, "--set", "optim.lr=0.1"], f"{other}'--set optim.lr=0.1' here, nothing more there"),
                (["eval", self.folder], f"{other}'eval {self.folder}' here, 'train "),
                ([*train, "--zzz"], "--zzz"), (["inspect", kt.corpus()], "one of the 2 programs of this mpirun"),
                (["--version"], "one of the 2 programs of this mpirun"))
        for args, fragment in rows:
            for programs in ((train, args), (args, train)):
                with self.subTest(programs=programs):
                    told = fragment if programs[0] is train or other not in fragment else other
                    self.assert_error(self.job(*programs), 2, told)
                    self.assertFalse(self.run_dir.exists())
        self.assert_error(self.job(train, [*train, "--zzz"], [*train, "--zzz"]), 2, "--zzz")

    def test_integers_of_options_may_be_written_as_1e3(self):
        shown = self.assert_ok(kt.run(["config", self.write_config(), "--ranks", "2e0"]))
        self.assertIn("shard: auto  # default; here 2", shown.stdout)
        made = kt.run(["prepare", *kt.write_sources(self.folder, kt.default_sources()), "--out", self.folder / "c",
                       "--vocab", "3e2"])
        self.assert_ok(made)
        self.assertIn("vocabulary 300", kt.run(["inspect", self.folder / "c"]).stdout)

    def test_what_was_written_stays_one_readable_line(self):
        path = self.write_config()
        for args, fragment in ((["config", path, "--set", "optim.lr=a\nb"], "--set optim.lr=a\\nb: optim.lr: expected"),
                               (["config", path, "--set", b"opt\xffim.lr=1"], "unknown key 'opt\\xffim'"),
                               (["tr\nain"], "unknown command 'tr\\nain'"), (["inspect", b"\x1b[31m"], "\\x1b[31m")):
            result = kt.finish(kt.subprocess.Popen([kt.K25, *args], env=kt.environment(), stdout=kt.subprocess.PIPE,
                                                   stderr=kt.subprocess.PIPE, start_new_session=True))
            self.assert_error(result, 2, fragment)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_help_and_version_need_nothing(self):  # C28
        clean = {"PATH": "/nonexistent", "HOME": None, "OMPI_MCA_btl": "nonsense"}
        for args in (["--help"], ["--version"], ["train", "--help"], ["bench", "step", "--help"]):
            shown = self.assert_ok(kt.run(args, env=clean))
            self.assertEqual(shown.stderr, "")
            self.assertIn("k25" if args == ["--version"] else "Usage", shown.stdout)
        job = self.assert_ok(kt.run(["--version"], 3))
        self.assertEqual(job.stdout.count("k25"), 1)

    def test_paths_that_are_no_run(self):
        none = self.folder / "none"
        rows = (["eval", none], ["sample", none], ["inspect", none], ["train", none], ["config", none],
                ["bench", "step", "--config", none], ["prepare", none, "--out", self.folder / "out"],
                ["prepare", self.folder, "--out", self.folder.parent / "k25-never", "--tokenizer", none])
        for args in rows:
            self.assert_error(kt.run(args), 2, none, "o such file" if args[0] != "prepare" else "no such f")
        for args in (["eval", self.folder], ["sample", self.folder], ["inspect", self.folder]):
            self.assert_error(kt.run(args), 4, self.folder, "no run directory and no checkpoint")
        (self.folder / "config.yaml").write_text("x: 1\n")  # of a run that has saved nothing yet
        for command in ("eval", "sample", "inspect"):
            self.assert_error(kt.run([command, self.folder]), 4, self.folder, "has no checkpoint yet")

    def test_values_of_options_are_checked_in_short_words(self):
        rows = ((["sample", "x", "--tokens", "-1"], "--tokens: expected an integer in [0, 1000000000], got '-1'"),
                (["sample", "x", "--tokens", "010"], "without leading zeros, got '010'"),
                (["sample", "x", "--seed", "-1"], "--seed: expected an integer in [0, 9007199254740992], got '-1'"),
                (["sample", "x", "--seed", "1.5"], "--seed: expected an integer in [0, 9007199254740992], got '1.5'"),
                (["sample", "x", "--top-k", "-1"], "--top-k: expected an integer in [0, 9007199254740992], got '-1'"),
                (["sample", "x", "--temperature", "nan"], "--temperature: expected a number in [0, 1e+300], got 'nan'"),
                (["eval", "x", "--batch", "0"], "--batch: expected an integer in [1, 16777216], got '0'"),
                (["config", "x", "--ranks", "0"], "--ranks: expected an integer in [1, 1048576], got '0'"),
                (["bench", "step", "--config", "x", "--steps", "0"], "--steps: expected an integer in [1, 1000000000]"),
                (["bench", "step", "--config", "x", "--warmup", "-1"], "--warmup: expected an integer in [0, "),
                (["prepare", "x", "--out", "y", "--vocab", "257"], "--vocab: expected an integer in [258, 2147483647]"),
                (["prepare", "x", "--out", "y", "--containment", "0"], "--containment: expected a number in (0, 1]"),
                (["prepare", "x", "--out", "y", "--max-file-tokens", "0"], "--max-file-tokens: expected an integer in [1, 9007199254740992]"))
        for args, fragment in rows:
            result = self.assert_error(kt.run(args), 2, fragment)
            self.assertLess(len(result.stderr), 200, result.stderr)

    def test_an_option_given_twice(self):
        rows = ((["sample", "x", "--tokens", "1", "--tokens", "2"], "--tokens is given 2 times: give it once"),
                (["eval", "x", "--batch", "1", "--batch", "2", "--batch", "3"], "--batch is given 3 times: give it once"),
                (["train", "x", "--resume", "a", "--resume", "b"], "--resume is given 2 times: give it once"),
                (["bench", "step", "--config", "a", "--config", "b"], "--config is given 2 times: give it once"),
                (["prepare", "x", "--out", "a", "--out", "b"], "--out is given 2 times: give it once"))
        for args, fragment in rows:
            self.assert_error(kt.run(args), 2, fragment)


if __name__ == "__main__":
    unittest.main()
