"""k25 doctor: findings with consequence and mend, alone and in a job; ceilings that k25 plan reads."""
import json
import os
import re
import unittest

import k25_testing as kt


class DoctorTest(kt.K25Test):
    def doctor(self, *args, ranks=None, **options):
        return self.assert_ok(kt.run(["doctor", "--run-dir", self.folder, *args], ranks, **options)).stdout

    def findings(self, *args, **options):
        shown = kt.parse_json(self.doctor("--json", *args, **options))
        self.assertEqual(shown["format"], "k25 doctor 1")
        for finding in shown["findings"]:
            self.assertIn(finding["severity"], ("ok", "note", "warning"))
            if finding["severity"] != "ok":
                self.assertTrue(finding["consequence"] and finding["mend"], finding)
        return shown

    def of(self, shown, topic):
        return [f for f in shown["findings"] if f["topic"] == topic]

    def test_alone(self):
        shown = self.findings()
        self.assertEqual(shown["ranks"], 1)
        self.assertIsNone(shown["ceilings"])
        topics = {f["topic"] for f in shown["findings"]}
        self.assertLessEqual({"kernel", "cpu", "versions", "numa", "binding", "gpu", "memlock", "/dev/shm",
                              "huge pages", "open files", "run dir"}, topics)
        versions = self.of(shown, "versions")[0]["found"]
        self.assertIn("MPI", versions)
        self.assertIn("HDF5", versions)
        self.assertIn(str(self.folder), self.of(shown, "run dir")[0]["found"])

    def test_text_names_every_finding(self):
        def still(text):  # bytes move between two runs: free ones, and those a virtual machine is given
            return re.sub(r"\d+ bytes \(\d+\.\d{3} GiB\)", "BYTES", text)

        text = still(self.doctor())
        for finding in self.findings()["findings"]:
            self.assertIn(still(finding["found"]), text)
        self.assertRegex(text, r"(?m)^\d+ warnings, \d+ notes$")

    def test_a_job_reports_every_rank_once(self):
        shown = self.findings(ranks=2)
        self.assertEqual(shown["ranks"], 2)
        binding = self.of(shown, "binding")
        self.assertEqual(len(binding), 1)
        self.assertIn("rank 0: cpus", binding[0]["found"])
        self.assertIn("rank 1: cpus", binding[0]["found"])
        self.assertEqual(len(self.of(shown, "kernel")), 1)
        self.assertIn("2 ranks need about", self.of(shown, "/dev/shm")[0]["found"])

    def test_ranks_on_one_cpu_are_oversubscribed(self):
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(allowed)})
        try:
            binding = self.of(self.findings(ranks=2), "binding")[0]
        finally:
            os.sched_setaffinity(0, allowed)
        self.assertEqual(binding["severity"], "warning")
        self.assertIn("2 ranks take turns on 1 CPUs", binding["consequence"])

    def test_measured_ceilings_plan_a_run(self):
        for ranks in (None, 2):
            path = self.folder / f"ceilings-{ranks}.json"
            shown = self.findings("--measure", path, ranks=ranks)
            ceilings = json.loads(path.read_text())
            self.assertEqual(shown["ceilings"], ceilings)
            measured = ["copy_gb_per_s", "gemm_tflop_per_s", "attention_forward_tflop_per_s",
                        "attention_backward_tflop_per_s", "triad_gb_per_s"]
            links = ["all_gather_gb_per_s", "reduce_scatter_gb_per_s"]
            for key in measured + (links if ranks else []):
                self.assertGreater(ceilings[key], 0, key)
            if ranks is None:
                self.assertEqual([ceilings[key] for key in links], [None, None])
            config = self.write_config(manifest="corpus/manifest.json")
            plan = ["plan", config, "--ceilings", path, "--gpus", ranks or 1]
            if ceilings["device"] != "cpu":
                plan += ["--set", "train.precision=bf16"]
            text = self.assert_ok(kt.run(plan)).stdout
            self.assertIn("your file", text)
            self.assertNotIn("no prediction", text)

    def test_nothing_is_changed(self):
        before = kt.tree(self.folder)
        self.doctor()
        self.assertEqual(kt.tree(self.folder), before)

    def test_measure_replaces_nothing_but_ceilings(self):
        target = self.folder / "target"
        target.write_text("precious\n")
        (self.folder / "link").symlink_to(target)
        (self.folder / "dir").mkdir()
        os.mkfifo(self.folder / "pipe")
        texts = {"text": "precious\n", "empty": "", "list": "[1]", "other.json": '{"format": "k25 doctor 1"}',
                 "format.json": '{"format": 1}', "large": "x" * (1 << 21)}
        for name, text in texts.items():
            (self.folder / name).write_text(text)
        before = kt.tree(self.folder)
        for ranks in (None, 2):
            for name in ("text", "link", "dir", "pipe", *texts):
                path = self.folder / name
                result = kt.run(["doctor", "--measure", path], ranks, timeout=60)
                self.assert_error(result, 2, f"{path}: is ", "only a file of ceilings is replaced: name another "
                                  "file, or remove this one")
                self.assertEqual(result.stdout, "")
        self.assertEqual(kt.tree(self.folder), before)
        self.assert_error(kt.run(["doctor", "--measure", "/dev/null"]), 2, "/dev/null: is a device, a pipe")
        # Of another version, or damaged: it is ceilings all the same.
        old = self.folder / "old.json"
        old.write_text('{"format": "k25 ceilings 0"}')
        self.doctor("--measure", old)
        self.assertEqual(json.loads(old.read_text())["format"], "k25 ceilings 1")

    def test_bad_arguments(self):
        path = self.folder / "none" / "ceilings.json"
        self.assert_error(kt.run(["doctor", "--measure", path]), 2, path,
                          f"no file can be made in {path.parent} (No such file or directory); name a file in a")
        self.assert_error(kt.run(["doctor", "--measure", path], 2), 2, path)
        self.assert_error(kt.run(["doctor", "--fix"]), 2, "--fix")


if __name__ == "__main__":
    unittest.main()
