"""What a GPU run is refused for: devices, device memory, host memory. Exit code 2, and nothing is left behind."""

import pathlib
import resource
import unittest

import k25_testing
from gpu_testing import BF16, ON_GPU, GpuTest, visible_gpus
from k25_testing import state_hash

OFFLOAD = {"offload.optimizer": "host", "offload.params": "host"}
# 3.2e9 parameters a layer: 51 GB with two moments in fp32.
HUGE = {**BF16, "model.hidden": 16384, "model.heads": 128, "model.kv_heads": 8, "model.ffn": 53248}


def host_memory():
    """Bytes that the processes of this container may still take, or more."""
    known = [int(line.split()[1]) * 1024 for line in pathlib.Path("/proc/meminfo").read_text().splitlines()
             if line.startswith("MemAvailable:")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            known.append(int(pathlib.Path(path).read_text()))
        except (OSError, ValueError):  # "max"
            continue
    return min(known)


class RefusalTest(GpuTest):
    def assert_refused(self, changes, *fragments, ranks=None, visible=None):
        env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        result = self.assert_error(self.train(changes, ranks, env=env), 2, *fragments)
        self.assertFalse(self.run_dir.exists(), str(result))
        return result


class Devices(RefusalTest):
    def setUp(self):
        super().setUp()
        self.skip_on_cpu()

    def test_more_ranks_than_gpus(self):
        count = k25_testing.gpu_count()
        self.assert_refused({"train.batch": 4 * (count + 1)}, f" has {count} GPU", f"for {count + 1} ranks",
                            "one rank for each GPU",
                            ranks=count + 1)

    def test_none_is_visible(self):
        for ranks in (None, 1):
            self.assert_refused({}, "train.device is cuda", "sees no GPU", "CUDA_VISIBLE_DEVICES=",
                                ranks=ranks, visible="")

    def test_a_missing_one(self):
        self.assert_refused({}, "CUDA_VISIBLE_DEVICES=99 names 1 GPUs, and CUDA finds 0", visible="99")
        first = visible_gpus()[0]
        self.assert_refused({}, f"CUDA_VISIBLE_DEVICES={first},99 names 2 GPUs, and CUDA finds 1",
                            visible=f"{first},99")

    def test_one_named_twice(self):
        first = visible_gpus()[0]
        self.assert_refused({}, f"CUDA_VISIBLE_DEVICES={first},{first} names GPU {first} twice",
                            visible=f"{first},{first}")

    def test_auto_is_the_cpu_when_all_are_hidden_and_refuses_what_is_wrong(self):
        self.assert_refused({"train.device": "auto"}, "names 1 GPUs", visible="99")
        hidden = self.assert_ok(self.train({"train.device": "auto"}, env={"CUDA_VISIBLE_DEVICES": ""}))
        self.assertNotIn("gpu=", hidden.stdout)
        self.assert_ok(self.train({"train.device": "cpu"}, run_dir=self.folder / "cpu"))
        self.assertEqual(state_hash(self.run_dir), state_hash(self.folder / "cpu"))


class Memory(RefusalTest):
    def test_device_memory_before_the_first_step(self):
        for ranks in (None, 1):
            result = self.assert_refused(
                {**HUGE, "model.layers": 64}, "bytes on each rank",
                "free device memory" if ON_GPU else "MemAvailable", "recompute.layers" if ON_GPU else "model",
                ranks=ranks)
            self.assertRegex(result.stderr, r"(?m)^  masters +816083107840$")
            self.assertRegex(result.stderr, r"(?m)^  activations +\d+$")
            self.assertRegex(result.stderr, r"(?m)^  total +\d{13}$")

    def test_host_memory_of_an_offload(self):
        # 26 bytes a parameter on the host, the snapshot of a checkpoint included, against 4 on the GPU.
        layers = 1 + int(1.3 * host_memory() / (26 * 3.2e9))
        changes = {**HUGE, **OFFLOAD, "model.layers": layers, "train.batch": 1, "recompute.layers": "all",
                   "zero.reshard_after": "forward"}
        result = self.assert_refused(changes, "this run needs")
        if ON_GPU and "free device memory" in result.stderr:
            self.skipTest("this host has more memory than an offload from this GPU can fill")
        self.assertIn("bytes of host memory on each rank" if ON_GPU else "bytes on each rank", result.stderr)
        self.assertRegex(result.stderr, r"(?m)^  masters, host +\d+$" if ON_GPU else r"(?m)^  masters +\d+$")

    def test_a_small_limit_of_locked_memory(self):
        # Whether page-locked memory counts is the driver's choice: the run is as any, or says what it lacks.
        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
        try:
            result = self.train({**OFFLOAD, "model.vocab": 65536, "model.hidden": 64})  # 100 MiB and more
        finally:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
        if result.code == 0:
            plain = self.folder / "plain"
            self.assert_ok(self.train({"model.vocab": 65536, "model.hidden": 64}, run_dir=plain))
            self.assertEqual(state_hash(self.run_dir), state_hash(plain))
        else:
            self.assert_error(result, 2, "page-locked host memory; look at ulimit -l")
            self.assertFalse(self.run_dir.exists())


if __name__ == "__main__":
    unittest.main()
