"""RUN/plans.json: what the bits of a run depend on, kept with it and minded when it goes on."""
import hashlib
import json
import unittest

import k25_testing as kt
from train_testing import TrainTest


def sealed(content):
    """The text of a plans.json with a true sum."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    plain = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**content, "sha256": hashlib.sha256(plain.encode()).hexdigest()}, indent=2) + "\n"


class PlansFileTest(TrainTest):
    def setUp(self):
        super().setUp()
        self.path = self.run_dir / "plans.json"

    def go_on(self, ranks=None, **changes):
        return self.train({"train.device": "cpu", "train.steps": 6, **changes}, ranks)

    def test_cpu_run_keeps_the_host_and_goes_on_silently(self):
        self.assert_ok(self.train({"train.device": "cpu"}, 2))
        text = self.path.read_text()
        plans = kt.parse_json(text)
        self.assertEqual(list(plans), ["format", "host", "gpu", "gemm", "attention", "sha256"])
        self.assertEqual((plans["format"], plans["gpu"], plans["gemm"], plans["attention"]),
                         ("k25 plans 1", None, [], []))
        self.assertEqual(list(plans["host"]), ["cpu_isa", "threads", "eigen_l1_bytes", "compiler"])
        self.assertEqual(sealed(plans), text)
        shown = self.assert_ok(kt.run(["inspect", self.run_dir])).stdout
        self.assertIn(f"plans={plans['sha256'][:16]}", shown)
        result = self.assert_ok(self.go_on(2))
        self.assertNotIn("differs from the checkpoint: machine", result.stderr)
        self.assertNotIn("plans.json", result.stderr)
        self.assertEqual(self.path.read_text(), text)

    def test_another_run_directory_goes_on_with_the_plans_of_the_checkpoint(self):
        self.assert_ok(self.train({"train.device": "cpu"}))
        self.assert_ok(self.train({"train.device": "cpu"}, args=["--resume", "none"]))
        old = self.run_dir / "checkpoints.before-1" / "step-000004"
        for path, damaged in ((old, "plans.json.before-1"), (f"{self.run_dir}/checkpoints/step-000004/", "plans.json")):
            (self.run_dir / damaged).write_text("")
            self.write_config({"train.device": "cpu", "train.steps": 6}, run_dir=self.folder / "other")
            self.assert_error(kt.run(["train", self.config_path, "--resume", path]), 4, self.run_dir / damaged)

    def test_another_machine_is_told_and_recorded(self):
        self.assert_ok(self.train({"train.device": "cpu"}, env={"K25_CPU_ISA": "x86-64"}))
        self.assertEqual(kt.parse_json(self.path.read_text())["host"]["cpu_isa"], "x86-64")
        before = self.path.read_text()
        self.write_config({"train.device": "cpu", "train.steps": 6, "run.cpu_threads": 2})
        result = self.assert_ok(kt.run(["train", self.config_path], env={"K25_CPU_ISA": "x86-64"}))
        self.assertIn("differs from the checkpoint: machine", result.stderr)
        self.assertNotEqual(self.path.read_text(), before)
        self.assertEqual(kt.parse_json(self.path.read_text())["host"]["threads"], 2)

    def test_kernels_of_a_gpu_are_not_used_on_another(self):
        self.assert_ok(self.train({"train.device": "cpu"}))
        plans = kt.parse_json(self.path.read_text())
        plans["gpu"] = {"name": "NVIDIA H200", "sms": 132, "cuda": 13000, "driver": 13000,
                        "cublaslt": 130100, "cudnn": 91400}
        plans["gemm"] = ["fp32->fp32 m=1 n=2 k=3 A B overwrite align=4,8,16 cublaslt=130100 " + "0" * 128]
        self.path.write_text(sealed(plans))
        result = self.assert_ok(self.go_on(2))
        told = [line for line in result.warnings if "plans.json" in line]
        self.assertEqual(len(told), 1, result)
        self.assertIn("(gpu NVIDIA H200 -> none): not used", told[0])
        self.assertIsNone(kt.parse_json(self.path.read_text())["gpu"])

    def test_damage_is_an_error_with_the_mend(self):
        self.assert_ok(self.train({"train.device": "cpu"}))
        good = self.path.read_text()
        state = kt.state_hash(self.run_dir)
        for text, part in (("", "is no JSON object"), (good[:40], "is no JSON object"),
                           (good.replace('"threads": 1', '"threads": 9'), "is damaged or was changed"),
                           (good.replace("plans 1", "plans 7"), 'format: expected "k25 plans 1"')):
            self.path.write_text(text)
            self.assert_error(self.go_on(2), 4, self.path, part, "remove the file")
            self.assertEqual(self.path.read_text(), text)
        self.assertEqual(kt.state_hash(self.run_dir), state)
        self.path.unlink()
        self.assert_ok(self.go_on(2))
        self.assertEqual(self.path.read_text(), good)

    def test_a_folder_in_its_place(self):
        self.assert_ok(self.train({"train.device": "cpu"}))
        self.path.unlink()
        self.path.mkdir()
        self.assert_error(self.go_on(), 4, self.path, "is no regular file")

    def test_ranks_of_unlike_machines_are_told(self):
        lower = ["env", "K25_CPU_ISA=x86-64"]
        told = "the ranks run on unlike machines (rank 0: cpu x86-64)"
        for name, other in (("alike", lower), ("unlike", ["env", "-u", "K25_CPU_ISA"])):
            args = ["train", self.write_config({"train.device": "cpu"}, run_dir=self.folder / name)]
            result = self.assert_ok(self.run_unlike([(1, [], lower, args), (1, [], other, args)]))
            plans = kt.parse_json((self.folder / name / "plans.json").read_text())
            self.assertEqual(plans["host"]["cpu_isa"], "x86-64")
            if name == "alike":
                self.assertNotIn("unlike machines", result.stderr)
            else:  # every CPU that CI and we use has more than x86-64
                self.assertIn(told, result.stderr)


if __name__ == "__main__":
    unittest.main()
