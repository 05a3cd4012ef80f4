"""How a run is started, where its output goes, and what its surroundings may do to it."""
import os
import pathlib
import struct
import unittest

import k25_testing as kt


class LaunchTest(kt.K25Test):
    def test_one_process_with_and_without_mpirun(self):  # C28
        self.assert_ok(self.train(ranks=None, run_dir=self.folder / "alone"))
        self.assert_ok(self.train(ranks=1, run_dir=self.folder / "job"))
        self.assertEqual(kt.state_hash(self.folder / "alone"), kt.state_hash(self.folder / "job"))

    def test_commands_that_do_not_communicate_speak_once_in_a_job(self):
        for args in (["config", self.write_config()], ["inspect", kt.corpus()]):
            self.assertEqual(self.assert_ok(kt.run(args, 3)).stdout, self.assert_ok(kt.run(args)).stdout)

    def test_bench_op_measures_every_op(self):
        small = ["--device", "cpu", "--rows", "64", "--sequence", "32", "--hidden", "64", "--heads", "2",
                 "--kv-heads", "1", "--head-dim", "32", "--ffn", "96", "--vocab", "500"]
        for precision in ("fp32", "bf16"):
            shown = self.assert_ok(kt.run(["bench", "op", *small, "--precision", precision])).stdout
            rows = [line.split() for line in shown.splitlines()[4:]]
            names = {" ".join(row[:-5]) for row in rows}
            self.assertTrue({"residual", "swiglu backward", "rope", "rmsnorm backward", "embedding backward",
                             "adamw", "gemm weight gradient", "attention backward",
                             "cross-entropy training"} <= names, shown)
            for row in rows:
                ms, rate, _, floor, ratio = map(float, row[-5:])
                self.assertTrue(ms > 0 and rate > 0 and floor > 0 and ratio > 0, row)
        self.assert_error(kt.run(["bench", "op", "--rows", "64", "--sequence", "48"]), 2,
                          "--sequence 48 does not divide --rows 64")

    def test_bench_op_names_the_options_that_do_not_fit(self):
        for args, fragment in ((["--heads", "16", "--kv-heads", "3"], "--kv-heads 3 does not divide --heads 16"),
                               (["--head-dim", "31"], "--head-dim 31 is odd")):
            result = self.assert_error(kt.run(["bench", "op", "--device", "cpu", *args], 2), 2, fragment)
            self.assertEqual(result.stdout, "")
        shown = kt.run(["bench", "op", "--device", "cuda", "--rows", "32", "--sequence", "32"])
        if "built without CUDA" in shown.stderr:
            self.assert_error(shown, 2, "--device is cuda, but", "or set --device cpu")
            self.assertNotIn("train.device", shown.stderr)

    def test_empty_arguments_are_not_taken_for_none(self):
        config = self.write_config()
        for args, fragment in ((["prepare", self.folder, "--out", self.folder / "c", "--tokenizer", ""], "--tokenizer"),
                               (["train", config, "--resume", ""], "--resume"),
                               (["train", config, "--log-format", ""], "--log-format"),
                               (["train", config, "--resume="], "--resume="),
                               (["train", ""], "behind 'train'"), (["sample", ""], "behind 'sample'"),
                               (["sample", self.run_dir, "--tokenizer", ""], "--tokenizer"),
                               (["sample", self.run_dir, "--prompt", ""], "--prompt"),
                               (["sample", self.run_dir, "--checkpoint", ""], "--checkpoint"),
                               (["eval", self.run_dir, "--set", ""], "--set"),
                               (["inspect", self.run_dir, "--checkpoint", ""], "--checkpoint"),
                               (["config", "--import-ds-config", ""], "--import-ds-config"),
                               (["bench", "step", "--config", ""], "--config")):
            self.assert_error(kt.run(args), 2, fragment, "is empty")
        for override in ("train.init_from=", "train.init_from= ", "model.kv_heads="):
            self.assert_error(kt.run(["train", config, "--set", override], 2), 2, f"--set {override}: ",
                              "is empty; write null")
        self.assertFalse(self.run_dir.exists())

    def test_options_that_say_the_same_twice(self):
        config, model = self.write_config(), kt.corpus().parent / "tokenizer.model"
        for option, key, value in (("--resume", "train.resume", "none"), ("--log-format", "log.format", "json")):
            self.assert_error(kt.run(["train", config, option, value, "--set", f"{key}=x"], 2), 2,
                              f"{option} {value} and --set {key}=x")
        folders = kt.write_sources(self.folder, kt.default_sources())
        reuse = ["prepare", *folders, "--out", self.folder / "corpus", "--tokenizer", model, "--vocab"]
        self.assert_error(kt.run([*reuse, "400"]), 2, "--vocab 400: ", model, "has 300")
        self.assertFalse((self.folder / "corpus").exists())
        self.assert_ok(kt.run([*reuse, "300"]))

    def test_options_of_train_take_any_text(self):
        for ranks in (None, 2):
            self.assert_error(self.train({}, ranks, args=["--log-format", "xml"]), 2,
                              "k25: error: --log-format xml: log.format: expected one of text | json, got 'xml'")
        for path in ("runs/a #1", "a: b", "[x]", "*x"):
            self.assert_error(self.train(args=["--resume", path]), 4, f"--resume {path}: no checkpoint there")

    def test_openmp_variables_have_no_effect(self):  # A49
        self.assert_ok(self.train(ranks=2, run_dir=self.folder / "plain"))
        wanted = kt.state_hash(self.folder / "plain")
        for name, env in (("many", {"OMP_PROC_BIND": "true", "OMP_NUM_THREADS": "64"}),
                          ("zero", {"OMP_NUM_THREADS": "0"}), ("text", {"OMP_NUM_THREADS": "abc"})):
            result = self.assert_ok(self.train(ranks=2, env=env, run_dir=self.folder / name))
            self.assertEqual(kt.state_hash(self.folder / name), wanted)
            for variable, value in env.items():
                warned = [w for w in result.warnings if f"{variable}={value} has no effect" in w]
                self.assertEqual(len(warned), 1, str(result))

    def test_threads_are_reduced_to_the_affinity_mask(self):  # A13
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(allowed)})
        try:
            result = self.assert_ok(self.train({"run.cpu_threads": 8}, 2))
        finally:
            os.sched_setaffinity(0, allowed)
        warned = [w for w in result.warnings
                  if "the affinity mask has 1 core, cpu_threads reduced 8->1; use mpirun --bind-to none or "
                     "--map-by slot:PE=8" in w]
        self.assertEqual(len(warned), 1, str(result))
        self.assertIn("threads=1 ", result.stdout)
        self.assert_ok(self.train(ranks=2, run_dir=self.folder / "plain"))
        self.assertEqual(kt.state_hash(self.run_dir), kt.state_hash(self.folder / "plain"))


class OutputTest(kt.K25Test):
    def test_a_run_directory_that_cannot_be_made(self):
        (self.folder / "file").write_text("")
        for run_dir in (self.folder / "file" / "run", self.folder / "file", pathlib.Path("/proc/k25/run")):
            self.assert_error(self.train(ranks=2, run_dir=run_dir), 4, "run.dir", run_dir)
        self.assertEqual((self.folder / "file").read_text(), "")

    def test_a_run_directory_that_cannot_be_written(self):
        # Root writes everywhere, except where a folder is expected and a file is.
        self.run_dir.mkdir()
        (self.run_dir / "lock").write_text("")
        (self.run_dir / "metrics.jsonl").mkdir()
        self.assert_error(self.train(ranks=2), 4, self.run_dir / "metrics.jsonl")
        (self.run_dir / "metrics.jsonl").rmdir()
        (self.run_dir / "tensorboard").write_text("")
        self.assert_error(self.train(ranks=2), 4, self.run_dir / "tensorboard")
        (self.run_dir / "tensorboard").unlink()
        self.assertFalse((self.run_dir / "config.yaml").exists())  # refused before anything is written
        (self.run_dir / "config.yaml").mkdir()
        self.assert_error(self.train(ranks=2), 4, self.run_dir / "config.yaml")

    def test_a_folder_with_other_files_is_no_run_directory(self):
        self.run_dir.mkdir()
        (self.run_dir / "letter.txt").write_text("dear reader")
        self.assert_error(self.train(ranks=2), 4, self.run_dir, "no k25 run")
        self.assertEqual(os.listdir(self.run_dir), ["letter.txt"])

    def test_a_folder_with_files_of_a_run_s_names_is_no_run_directory(self):
        mine = self.folder / "mine"
        mine.mkdir()
        config = mine / "config.yaml"
        config.write_text("# mine\n" + kt.yaml_of(kt.tiny(mine, kt.corpus())))
        (mine / "latest").write_text("notes")
        for extra in ("checkpoints", "lock"):
            before = kt.tree(mine)
            for args in ((), ("--resume", "none")):
                self.assert_error(kt.run(["train", config, *args]), 4, mine, "no k25 run", "a new or an empty folder")
                self.assertEqual(kt.tree(mine), before)
            (mine / extra).mkdir() if extra == "checkpoints" else (mine / extra).write_text("of another program")
        # Relative, from inside.
        self.assert_error(kt.run(["train", "config.yaml", "--set", "run.dir=."], cwd=mine), 4, "run.dir: '.'", "no k25 run")

    def test_a_run_that_was_copied_without_its_lock(self):
        self.assert_ok(self.train({"train.steps": 2}))
        os.remove(self.run_dir / "lock")
        self.assertIn("at step 2", self.assert_ok(self.train({"train.steps": 3})).stdout)

    def test_an_error_of_all_ranks_is_the_only_line(self):
        for changes, env, code, text in (({"optim.lr": "x"}, {}, 2, "optim.lr"), ({"comm.max_chunk": 1}, {}, 2, "[4, "),
                                         ({}, {"K25_CPU_ISA": "foo"}, 2, "K25_CPU_ISA=foo")):
            result = self.train(changes, ranks=4, env=env)
            self.assert_error(result, code, text)
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, str(result))

    def test_standard_output_that_is_full(self):  # A35
        with open("/dev/full", "wb") as full:
            self.assert_error(self.train(stdout=full), 4, "standard output cannot be written: No space left")
            for args in (["config", "--keys"], ["config", self.config_path], ["inspect", kt.corpus()], ["--help"], ["--version"]):
                self.assert_error(kt.run(args, stdout=full), 4, "standard output cannot be written: No space left")

    def test_standard_output_that_is_closed(self):
        read, write = os.pipe()
        os.close(read)
        try:
            self.assert_error(self.train(stdout=write), 4, "standard output cannot be written: Broken pipe")
        finally:
            os.close(write)
        lines = "exec >&- 2>&- <&-; exec \"$0\" train \"$1\""
        done = kt.subprocess.run(["sh", "-c", lines, kt.K25, str(self.write_config())], env=kt.environment(),
                                 timeout=60, check=False)
        self.assertEqual(done.returncode, 4)
        self.assertEqual(list(self.run_dir.rglob("step-*")), [])
        for args in (["config", self.config_path], ["config", "--keys"], ["inspect", kt.corpus()], ["--help"],
                     ["--version"], ["train", self.config_path]):
            done = kt.subprocess.run(["sh", "-c", "exec \"$0\" \"$@\" >&-", kt.K25, *map(str, args)],
                                     env=kt.environment(), timeout=60, check=False, stderr=kt.subprocess.PIPE)
            self.assertEqual(done.returncode, 4, args)
            self.assertIn(b"standard output cannot be written: Bad file descriptor", done.stderr)

    def fill_disk(self, sink, changes):
        """A run whose files cannot grow any more once `sink` holds something."""
        path = self.write_config({"train.steps": 10**6, "data.validation": None, **changes})
        process = kt.start(["train", path], 2)
        kt.wait_for(lambda: any(p.stat().st_size > 2000 for p in self.run_dir.rglob(sink)), sink)
        kt.limit_files(str(path), 10000)
        return self.assert_error(kt.finish(process, 60), 4, self.run_dir, sink.strip("*"), "File too large")

    def test_metrics_on_a_full_disk(self):  # A35
        self.fill_disk("metrics.jsonl", {"log.tensorboard": False})
        # What was cut short does not harm the next run.
        self.assert_ok(self.train({"train.steps": 3}, 2))
        self.assertEqual([m["step"] for m in kt.steps(self.run_dir)], [1, 2, 3])

    def test_event_files_on_a_full_disk(self):  # A35
        self.fill_disk("events.out.tfevents*", {"log.metrics": False})

    def test_json_lines_on_standard_output(self):  # C27
        result = self.assert_ok(self.train({"debug.inject": {"step": 2, "tensor": "embedding", "value": "nan"}}, 2,
                                           args=["--log-format", "json"]))
        lines = [kt.parse_json(line) for line in result.stdout.splitlines()]
        self.assertEqual([l["step"] for l in lines if "event" not in l], [1, 2, 3, 4])
        self.assertEqual([l["step"] for l in lines if l.get("event") == "eval"], [0, 4])
        self.assertIn("note", {l.get("event") for l in lines})

    def test_metrics_of_a_resumed_run_have_each_step_once(self):  # C27
        changes = {"checkpoint.every": 2, "eval.every": 2, "train.steps": 5}
        self.assert_ok(self.train(changes, 2))
        self.assert_ok(self.train({**changes, "train.steps": 8}, 2, args=["--resume", "step:4"]))
        told = [(m["step"], m.get("event", "step")) for m in kt.metrics(self.run_dir)]
        self.assertEqual(len(told), len(set(told)), told)
        self.assertEqual([s for s, kind in told if kind == "step"], list(range(1, 9)))
        self.assertEqual([s for s, kind in told if kind == "eval"], [0, 2, 4, 6, 8])

    def test_event_files_are_valid(self):  # C27
        self.assert_ok(self.train({"train.steps": 2}, 2))
        self.assert_ok(self.train({"train.steps": 3}, 2))
        steps, files = [], sorted((self.run_dir / "tensorboard").iterdir())
        self.assertEqual(len(files), 2)
        for file in files:
            for event in read_events(file.read_bytes()):
                steps += [event] if event else []
        self.assertEqual(sorted(set(steps)), [1, 2, 3])


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_events(data):
    """The steps of the records of a TensorBoard file; a wrong checksum or length is an error."""
    at, steps = 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (crc,) = struct.unpack_from("<I", data, at + 8)
        assert crc == masked_crc32c(data[at:at + 8]), "checksum of a length"
        payload = data[at + 12:at + 12 + length]
        (crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert crc == masked_crc32c(payload), "checksum of a record"
        assert payload[0] == 0x09, "an event begins with its wall time"
        steps.append(payload[10] if payload[9] == 0x10 else 0)  # a step below 128 is one byte
        at += 16 + length
    return steps


if __name__ == "__main__":
    unittest.main()
