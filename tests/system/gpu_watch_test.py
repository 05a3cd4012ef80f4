"""One GPU: gradients that are not finite, the GPU's metrics, stalls, dumps and profiles."""

import unittest

import k25_testing
from device_checks import ENDLESS, FaultChecks, WatchChecks
from gpu_testing import ON_GPU, GpuTest

# Least and most that is believed of any card.
SANE = {"hw/gpu_util_percent": (0, 100), "hw/gpu_memory_gib": (0.1, 4096), "hw/gpu_power_w": (5, 3000),
        "hw/gpu_temperature_c": (5, 120), "hw/gpu_sm_clock_mhz": (50, 5000), "hw/gpu_throttled": (0, 1),
        "hw/gpu_throttle_reasons": (0, 2**63)}


class NotFinite(GpuTest, FaultChecks):
    def test_a_spoilt_gradient_changes_nothing(self):
        self.check_spoilt_gradient(None, "layers.1.ffn.gate_up", "inf", 900)
        self.check_spoilt_gradient(None, "final_norm", "nan", 3)

    def test_a_spoilt_loss_changes_nothing(self):
        self.check_spoilt_loss(None, "nan")
        self.check_spoilt_loss(None, "-inf")

    def test_too_many_in_a_row_end_the_run(self):
        self.check_limit_of_skips(None)


class Watch(GpuTest, WatchChecks):
    def test_metrics_of_the_gpu(self):
        process = self.start_train(ENDLESS, 1)
        path = self.run_dir / "metrics.jsonl"
        sampled = "hw/gpu_util_percent" if ON_GPU else "hw/cpu_cores"
        self.wait_for(lambda: path.exists() and f'"{sampled}"' in path.read_text(), process)
        self.stop(process)
        record = k25_testing.steps(self.run_dir)[-1]
        self.assertEqual({key for key in record if key.startswith("hw/gpu")}, set(SANE) if ON_GPU else set())
        for key, (least, most) in SANE.items() if ON_GPU else ():
            self.assertTrue(least <= record[key] <= most, f"{key} {record[key]}")
        self.assertGreater(record["hw/rss_gib"], 0)
        events = b"".join(p.read_bytes() for p in (self.run_dir / "tensorboard").iterdir())
        self.assertIn(sampled.encode(), events)

    def test_a_slow_read_is_one_stall(self):
        self.check_slow_read(1, 0)

    def test_dump_by_ctl_and_by_signal(self):
        self.check_dump(1)

    def test_profile_has_the_times_of_the_gpu(self):
        rows = self.check_profile(None)
        for name in ("step", "step/forward", "step/forward/layer 0", "step/backward/layer 1", "step/forward/head"):
            self.assertEqual("device_ms_per_step" in rows[name], ON_GPU, name)
            if ON_GPU:
                self.assertGreater(rows[name]["device_ms_per_step"], 0, name)

    def test_profile_changes_no_number(self):
        self.check_profile_changes_no_number(None)

    def test_memory_has_a_category_for_every_byte(self):
        memory = self.memory_report(None, {"device", "pinned"} if ON_GPU else {"host"})
        self.assertAlmostEqual(memory["measured_peak_bytes"] / memory["planned_peak_bytes"], 1.0, delta=0.05)
        if ON_GPU:
            self.assertGreater(memory["device_in_use_bytes"], memory["measured_peak_bytes"])
            for row in memory["categories"]:
                self.assertEqual(row["allocated_host_bytes"], row["planned_host_bytes"], row)


if __name__ == "__main__":
    unittest.main()
