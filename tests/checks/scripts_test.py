"""scripts/setup.sh, test.sh, quickstart.sh and what they print, with the slow programs replaced by stubs."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What ctest 3.25 writes for each outcome.
JUNIT = {
    "passed": '<testcase name="{0}" status="run"/>',
    "failed": '<testcase name="{0}" status="fail"><failure message=""/></testcase>',
    "skipped": '<testcase name="{0}" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>',
    "gtest_skipped":
        '<testcase name="{0}" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>',
    "no_program":
        '<testcase name="{0}" status="notrun"><skipped message="Unable to find executable"/></testcase>',
    "disabled": '<testcase name="{0}" status="disabled"/>',
}

METRICS = ('{"step": 0, "val_loss": 6.9}\n{"step": 1, "loss": 6.8}\n{"step": 2, "loss": 6.0}\n'
           '{"step": 2, "val_loss": 5.0}\n{"step": 3, "loss": 5.9}\n{"step": 3, "val_loss": 5.5}\n')

K25_STUB = f"""#!/usr/bin/env bash
echo "$@" >>"$CALLS"
case $1 in
  prepare) mkdir corpus && echo {{}} >corpus/manifest.json ;;
  train) mkdir -p runs/quickstart && touch runs/quickstart/latest
    cat >runs/quickstart/metrics.jsonl <<'END'
{METRICS}END
    ;;
  eval) echo "step=2 loss=5.0 tokens=9 unigram_entropy=5.6 train_unigram_cross_entropy=5.9" ;;
  sample) echo "You may copy this" ;;
esac
"""


def junit(*outcomes):
    cases = "".join(JUNIT[o].format(f"{o}_{i}") for i, o in enumerate(outcomes))
    return f"<testsuite>{cases}</testsuite>"


class ScriptTest(unittest.TestCase):
    """A copy of the scripts in a folder with a blank in its name, and stubs first in PATH."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="k25 scripts-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.tree = self.folder / "tree"
        shutil.copytree(ROOT / "scripts", self.tree / "scripts")
        self.stub("cmake", "exit 0")
        self.stub("ccache", "exit 0")

    def stub(self, name, body):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)

    def run_script(self, name, *arguments, cwd="/", **environment):
        env = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
               "CALLS": str(self.folder / "calls"), "PYTHONDONTWRITEBYTECODE": "1", **environment}
        done = subprocess.run(["bash", self.tree / "scripts" / name, *arguments], cwd=cwd, env=env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        return done.returncode, done.stdout


class SetupTest(ScriptTest):
    def test_list(self):
        code, output = self.run_script("setup.sh", "--list")
        self.assertEqual(code, 0)
        self.assertIn("libopenmpi-dev\n", output)

    def test_unknown_option(self):
        code, output = self.run_script("setup.sh", "--verbos")
        self.assertEqual(code, 1)
        self.assertIn("setup: unknown option '--verbos'", output)

    def test_all_present_calls_no_apt(self):
        self.stub("dpkg-query", "printf installed")
        self.stub("apt-get", "exit 9")
        code, output = self.run_script("setup.sh")
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"^setup: all \d+ packages are there\n$")

    def test_installs_only_what_is_missing(self):
        installed = self.folder / "installed"
        self.stub("dpkg-query", f'[ "${{!#}}" = libssl-dev ] && [ ! -e "{installed}" ] || printf installed')
        self.stub("apt-get", f'echo "$@" >>"$CALLS"; case "$*" in *install*) touch "{installed}" ;; esac')
        self.stub("id", "echo 0")
        code, output = self.run_script("setup.sh")
        self.assertEqual((code, output), (0, "setup: installing libssl-dev\n"))
        calls = (self.folder / "calls").read_text().splitlines()
        self.assertRegex(calls[0], "update$")
        self.assertRegex(calls[1], "install --no-install-recommends libssl-dev$")

    def test_not_root_and_no_sudo(self):
        self.stub("dpkg-query", '[ "${!#}" = libssl-dev ] || printf installed')
        self.stub("id", "echo 1000")
        self.stub("sudo", "echo 'a password is required' >&2; exit 1")
        code, output = self.run_script("setup.sh")
        self.assertEqual(code, 1)
        self.assertIn("setup: these packages are missing: libssl-dev\n", output)
        self.assertIn("run this script as root once", output)

    def test_no_network(self):
        self.stub("dpkg-query", '[ "${!#}" = libssl-dev ] || printf installed')
        self.stub("id", "echo 0")
        self.stub("apt-get", "echo 'E: Unable to locate package libssl-dev'; exit 100")
        code, output = self.run_script("setup.sh")
        self.assertEqual(code, 1)
        self.assertIn("E: Unable to locate package libssl-dev\n", output)
        self.assertIn("setup: is the network up", output)


class TestScriptTest(ScriptTest):
    """scripts/test.sh counts what ctest's results file says."""

    def run_test(self, results, ctest_code=0, arguments=("-R", "x")):
        self.stub("dpkg-query", "printf installed")
        self.stub("ctest", f"""while [ $# -gt 0 ]; do [ "$1" != --output-junit ] || out=$2; shift; done
mkdir -p "$(dirname "$out")"
printf '%s' '{results}' >"$out"
exit {ctest_code}""")
        return self.run_script("test.sh", *arguments)

    def assert_counts(self, outcome, code, last_line):
        self.assertEqual((outcome[0], outcome[1].splitlines()[-1]), (code, last_line), outcome[1])

    def test_all_passed(self):
        self.assert_counts(self.run_test(junit("passed", "passed")), 0, "2 passed, 0 failed, 0 skipped")

    def test_skips_are_not_passes(self):
        results = junit("passed", "skipped", "gtest_skipped", "disabled")
        self.assert_counts(self.run_test(results), 0, "1 passed, 0 failed, 3 skipped")

    def test_failure(self):
        outcome = self.run_test(junit("passed", "failed"), 8)
        self.assert_counts(outcome, 1, "1 passed, 1 failed, 0 skipped")
        self.assertIn("\nfailed:\n  failed_1\n", outcome[1])

    def test_missing_program_is_a_failure(self):
        self.assert_counts(self.run_test(junit("passed", "no_program"), 8), 1, "1 passed, 1 failed, 0 skipped")

    def test_nothing_ran(self):
        self.assert_counts(self.run_test("<testsuite/>"), 1, "0 passed, 1 failed, 0 skipped")

    def test_only_skips(self):
        outcome = self.run_test(junit("skipped"))
        self.assert_counts(outcome, 1, "0 passed, 1 failed, 1 skipped")
        self.assertIn("no test ran", outcome[1])

    def test_broken_results(self):
        self.assert_counts(self.run_test("<testsu"), 1, "0 passed, 1 failed, 0 skipped")

    def test_ctest_crashed_after_its_results(self):
        self.assert_counts(self.run_test(junit("passed"), 139), 1, "1 passed, 1 failed, 0 skipped")

    def test_build_failure(self):
        self.stub("cmake", 'case $1 in --build) echo "FAILED: a.o"; echo "a.cpp:1: error"; exit 1 ;; esac')
        outcome = self.run_test(junit("passed"))
        self.assert_counts(outcome, 1, "0 passed, 1 failed, 0 skipped")
        self.assertIn("a.cpp:1: error", outcome[1])

    def test_unknown_option_and_preset(self):
        code, output = self.run_script("test.sh", "--pre")
        self.assertEqual((code, output.splitlines()[0][:25]), (2, "test: unknown option '--p"))
        code, output = self.run_script("test.sh", "--preset", "h200")
        self.assertEqual(code, 2)
        self.assertIn("no preset 'h200' to test", output)
        code, output = self.run_script("test.sh", "-R")
        self.assertEqual((code, output), (2, "test: -R needs a value\n"))


class QuickstartTest(ScriptTest):
    def setUp(self):
        super().setUp()
        self.stub("dpkg-query", "printf installed")
        self.stub("mpirun", 'shift 2; exec "$@"')
        k25 = self.tree / "build/cpu/trainer/cli/k25"
        k25.parent.mkdir(parents=True)
        k25.write_text(K25_STUB)
        k25.chmod(0o755)

    def calls(self):
        return (self.folder / "calls").read_text().splitlines()

    def test_first_run(self):
        code, output = self.run_script("quickstart.sh", "--set", "train.steps=3")
        self.assertEqual(code, 0, output)
        self.assertEqual([c.split()[0] for c in self.calls()], ["prepare", "train", "eval", "sample"])
        self.assertEqual(self.calls()[1], "train configs/quickstart.yaml --set train.steps=3")
        for line in ("  validation loss at step 0                     6.9000\n",
                     "  validation loss at step 2, the best           5.0000\n",
                     "  unigram entropy of the validation tokens      5.6000\n",
                     "  the training tokens' unigram on them          5.9000\n",
                     "the model is 0.60 nats below both unigrams\n",
                     "You may copy this\n", "--set train.steps=400\n"):
            self.assertIn(line, output)
        self.assertEqual((self.tree / "runs/quickstart/loss.png").read_bytes()[:4], b"\x89PNG")
        self.assertNotIn("reusing", output)

    def test_second_run_says_what_it_reuses(self):
        self.run_script("quickstart.sh")
        code, output = self.run_script("quickstart.sh", cwd=self.folder)
        self.assertEqual(code, 0, output)
        self.assertIn("reusing corpus/", output)
        self.assertIn("reusing runs/quickstart", output)
        self.assertEqual([c.split()[0] for c in self.calls()].count("prepare"), 1)

    def test_foreign_corpus_folder(self):
        (self.tree / "corpus").mkdir()
        code, output = self.run_script("quickstart.sh")
        self.assertEqual(code, 3)
        self.assertIn("corpus exists but holds no manifest.json", output)

    def test_another_run_dir_is_refused_before_anything_is_done(self):
        for args in (("--set", "run.dir=other"), ("--set=run.dir=other",), ("--set", "run={dir: other}"),
                     ("--resume", "auto", "--set=run={dir: other}")):
            code, output = self.run_script("quickstart.sh", *args)
            self.assertEqual(code, 2, output)
            self.assertIn(f"{args[-1]}: the quickstart trains into runs/quickstart", output)
            self.assertIn("mpirun -np 2 build/cpu/trainer/cli/k25 train configs/quickstart.yaml --set run.dir=DIR",
                          output)
            self.assertNotIn("== ", output)
            self.assertFalse((self.folder / "calls").exists())

    def test_failed_training_ends_the_script(self):
        self.stub("mpirun", "exit 5")
        code, output = self.run_script("quickstart.sh")
        self.assertEqual(code, 5)
        self.assertNotIn("== result", output)


class ReportTest(unittest.TestCase):
    def report(self, metrics, evaluation):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("m", metrics), ("e", evaluation)):
                pathlib.Path(folder, name).write_text(text)
            done = subprocess.run([sys.executable, ROOT / "scripts/quickstart_report.py", f"{folder}/m", f"{folder}/e"],
                                  capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_not_learned(self):
        code, output = self.report(METRICS, "step=2 loss=5.0 unigram_entropy=4.0 train_unigram_cross_entropy=4.5")
        self.assertEqual(code, 0)
        self.assertIn("the model is not below both unigrams (1.00 nats missing): train longer\n", output)

    def test_no_validation_data(self):
        code, output = self.report(METRICS, "step=2 loss=n/a tokens=0")
        self.assertEqual((code, output), (1, "k25 eval printed no number loss=: step=2 loss=n/a tokens=0\n"))

    def test_no_evaluation(self):
        code, output = self.report('{"step": 1, "loss": 2}\n', "")
        self.assertEqual(code, 1)
        self.assertIn("holds no val_loss", output)

    def test_broken_metrics(self):
        code, output = self.report('{"step": 1}\n{"step"', "")
        self.assertEqual(code, 1)
        self.assertIn("m:2: not JSON", output)


if __name__ == "__main__":
    unittest.main()
