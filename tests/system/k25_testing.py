"""What the system tests share: corpora, small configurations, runs of the k25 program.

K25_BIN names the program (ctest sets it). Every run has a folder of its own whose name appears on the
command line of each of its processes, so that one left behind is found.
"""

import ctypes
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

K25 = os.environ.get("K25_BIN", "")
ERROR = "k25: error:"
# Where the tests labelled gpu run. K25_TEST_DEVICE=cpu runs them on the CPU, as far as they make sense there: for
# trying out a test where there is no GPU. It says nothing about GPUs.
DEVICE = os.environ.get("K25_TEST_DEVICE", "cuda")
if DEVICE not in ("cpu", "cuda"):
    raise SystemExit(f"K25_TEST_DEVICE is {DEVICE}: expected cpu or cuda")
# Every error must be told within this many seconds.
ERROR_SECONDS = 10.0
WORDS = ("the license grants permission to copy distribute and modify this work under these terms "
         "without warranty of any kind express or implied source code object form notice").split()


def require_k25():
    if not K25:
        raise unittest.SkipTest("K25_BIN is not set")


def gpu_count():
    """How many GPUs CUDA shows to a program that is started now."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def require_gpus(count):
    """With fewer a test is skipped, or fails where K25_REQUIRE_GPU is set (the CUDA test presets), as in C++."""
    if DEVICE == "cpu" or gpu_count() >= count:
        return
    why = f"fewer GPUs than {count}: {gpu_count()}"
    if "K25_REQUIRE_GPU" in os.environ:
        raise AssertionError(f"{why}, and K25_REQUIRE_GPU is set")
    raise unittest.SkipTest(why)


def slowness():
    """How much slower than an idle machine this one may be now (a loaded CI, a sanitizer)."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return float(os.environ.get("K25_TEST_SLOWDOWN", "1")) * max(1.0, load)


def words(count, seed):
    """Text of `count` words, the same for the same seed."""
    draw = random.Random(seed)
    text = [draw.choice(WORDS) for _ in range(count)]
    return " ".join(w + (".\n" if i % 12 == 11 else "") for i, w in enumerate(text)).strip() + "\n"


def dialogue(prompt_words, response_words, seed):
    """One JSONL line; only the response carries labels."""
    return json.dumps({"prompt": words(prompt_words, seed), "response": words(response_words, seed + 1)})


def default_sources():
    return {"law": {f"text{i}.txt": words(150, i) for i in range(8)}}


@dataclasses.dataclass
class Result:
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def errors(self):
        return [line for line in self.stderr.splitlines() if line.startswith(ERROR)]

    @property
    def warnings(self):
        return [line for line in self.stderr.splitlines() if line.startswith("k25: warning:")]

    def __str__(self):
        return f"exit code {self.code}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def environment(extra=None):
    env = dict(os.environ)
    env.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_rmaps_base_oversubscribe": "1",
                "OMPI_MCA_hwloc_base_binding_policy": "none"})
    for name, value in (extra or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def command(args, ranks=None, mpi_args=()):
    """`ranks` None: without mpirun."""
    program = [K25] + [str(a) for a in args]
    if ranks is None:
        return program
    return ["mpirun", "-q", "-np", str(ranks), *mpi_args] + program


def start(args, ranks=None, env=None, mpi_args=(), stdout=subprocess.PIPE, file_limit=None, cwd=None):
    """A run in a process group of its own, for tests that signal it. `file_limit`: bytes a file may have
    (not with ranks, MPI writes files of its own; see limit_files)."""
    def limit():
        # A mask is inherited: where the test's caller blocks SIGUSR1, mpirun would never see it.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    return subprocess.Popen(command(args, ranks, mpi_args), env=environment(env), stdout=stdout,
                            stderr=subprocess.PIPE, start_new_session=True, cwd=cwd,
                            preexec_fn=limit)


def processes_from(root):
    """A process and all below it."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            continue

    def below(pid):
        while pid not in (root, 0, 1):
            pid = parents.get(pid, 0)
        return pid == root

    return sorted(filter(below, parents))


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def what_hangs(pids):
    """The threads of the processes, with what each waits for in the kernel."""
    lines = []
    for pid in pids:
        for task in sorted((pathlib.Path("/proc") / str(pid) / "task").glob("*")):
            try:
                state = (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
                lines.append(f"hangs: {pid} {(task / 'comm').read_text().strip()} {state} "
                             f"{(task / 'wchan').read_text().strip()}")
            except OSError:
                continue
    return "\n" + "\n".join(lines) + "\n"


def finish(process, timeout=120.0, started=None):
    """Waits for a started run. One that hangs is killed and has code None."""
    begin = time.monotonic() if started is None else started
    try:
        out, err = process.communicate(timeout=timeout * slowness())
        code = process.returncode
        hung = ""
    except subprocess.TimeoutExpired:
        pids = processes_from(process.pid)
        hung = what_hangs(pids)
        for pid in pids:  # ranks have process groups of their own; one that stays keeps our pipes open
            kill(pid)
        out, err = process.communicate()
        code = None
    decode = lambda b: (b or b"").decode("utf-8", "replace")
    return Result(code, decode(out), decode(err) + hung, time.monotonic() - begin)


def run(args, ranks=None, timeout=120.0, **options):
    begin = time.monotonic()
    return finish(start(args, ranks, **options), timeout, begin)


def write_sources(folder, domains):
    """{"law": {"a.txt": text or bytes}} below `folder`; returns the DIR arguments."""
    for domain, files in domains.items():
        (folder / domain).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.encode()
            (folder / domain / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / domain / name).write_bytes(data)
    return [folder / domain for domain in domains]


def corpus(domains=None, vocab=300, options=()):
    """Path of the manifest of a corpus, prepared once per program and content. Do not write into it."""
    domains = domains or default_sources()
    binary = os.stat(K25)
    key = repr((sorted((d, sorted(f.items())) for d, f in domains.items()), vocab, tuple(options),
                binary.st_mtime_ns, binary.st_size))
    cache = pathlib.Path(K25).parent / "test-corpora"
    folder = cache / hashlib.sha256(key.encode()).hexdigest()[:20]
    if not (folder / "manifest.json").exists():
        cache.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            scratch = pathlib.Path(scratch)
            made = run(["prepare", *write_sources(scratch, domains), "--out", scratch / "made",
                        "--vocab", str(vocab), *options])
            if made.code != 0:
                raise AssertionError(f"k25 prepare: {made}")
            try:
                os.rename(scratch / "made", folder)
            except OSError:  # another test was faster
                if not (folder / "manifest.json").exists():
                    raise
    return folder / "manifest.json"


def tiny(run_dir, manifest):
    """A model of 2 layers that trains a step in milliseconds."""
    return {"run": {"dir": str(run_dir), "seed": 7},
            "model": {"layers": 2, "hidden": 16, "heads": 2, "kv_heads": 1, "ffn": 32, "vocab": 300},
            "data": {"train": str(manifest), "validation": {"fraction": 0.1}, "sequence": 32},
            "train": {"steps": 4, "batch": 8, "micro_batch": 1},
            "optim": {"lr": 1e-3},
            "comm": {"timeout_s": 20}}


def set_keys(config, changes):
    """{"train.steps": 5}; None drops a key or a section."""
    for path, value in changes.items():
        *sections, name = path.split(".")
        node = config
        for section in sections:
            node = node.setdefault(section, {})
        if value is None:
            node.pop(name, None)
        else:
            node[name] = value
    return config


def yaml_of(config, indent=0):
    """Block style, one key a line, in the order of the dictionary."""
    text = ""
    for key, value in config.items():
        text += "  " * indent + key + ":"
        text += "\n" + yaml_of(value, indent + 1) if isinstance(value, dict) else f" {json.dumps(value)}\n"
    return text


def refuse_constant(name):
    raise AssertionError(f"{name} is no JSON number")


def parse_json(line):
    return json.loads(line, parse_constant=refuse_constant)


def metrics(run_dir):
    """All lines of metrics.jsonl; a token such as NaN is an error."""
    lines = (pathlib.Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return [parse_json(line) for line in lines]


def steps(run_dir):
    return [m for m in metrics(run_dir) if "event" not in m]


def state_hash(run_dir, which=None):
    """Digest of parameters and moments, the same for every rank count. Verifies the checkpoint."""
    shown = run(["inspect", run_dir, *(["--checkpoint", which] if which else []), "--hash"])
    found = re.search(r"^  hash ([0-9a-f]+)$", shown.stdout, re.M)
    if shown.code != 0 or not found:
        raise AssertionError(f"k25 inspect {run_dir}: {shown}")
    return found.group(1)


def tree(folder):
    """Every file below `folder` with its content, and every folder."""
    folder = pathlib.Path(folder)
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
            for p in sorted(folder.rglob("*"))}


class K25Test(unittest.TestCase):
    """A test with a folder of its own: self.folder, self.run_dir, self.config_path."""

    maxDiff = None
    keys = {}  # of every configuration, below those that a test gives

    @classmethod
    def setUpClass(cls):
        require_k25()

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="k25-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(self.assert_no_process_left)
        self.run_dir = self.folder / "run"
        self.config_path = self.folder / "cfg.yaml"

    def write_config(self, changes=None, manifest=None, run_dir=None, path=None):
        """The tiny configuration with some keys changed; returns its path."""
        config = tiny(run_dir or self.run_dir, manifest or corpus())
        path = path or self.config_path
        path.write_text(yaml_of(set_keys(config, {**self.keys, **(changes or {})})))
        return path

    def train(self, changes=None, ranks=None, manifest=None, args=(), **options):
        """k25 train of the tiny configuration with `changes`."""
        path = self.write_config(changes, manifest, options.pop("run_dir", None))
        return run(["train", path, *args], ranks, **options)

    def assert_ok(self, result):
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(result.errors, [], str(result))
        return result

    def assert_error(self, result, code, *fragments):
        """One message from one rank with all `fragments`, this exit code, in time, and no process left."""
        self.assertEqual(result.code, code, str(result))
        self.assertEqual(len(result.errors), 1, str(result))
        self.assertLess(result.seconds, ERROR_SECONDS * slowness(), str(result))
        for fragment in fragments:
            self.assertIn(str(fragment), result.stderr, str(result))
        self.assert_no_process_left()
        return result

    def assert_no_process_left(self):
        """No process has this test's folder on its command line; a job's last rank may take a moment."""
        left = []
        for _ in range(50):
            left = [p for p in processes_naming(str(self.folder)) if p != os.getpid()]
            if not left:
                return
            time.sleep(0.1)
        for pid in left:
            kill(pid)
        self.fail(f"processes were left behind: {left}")


def limit_files(text, size):
    """From now on no file of the running k25 processes with `text` on their command line grows beyond `size`."""
    for pid in processes_naming(text):
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == os.path.basename(K25):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))


def wait_for(condition, what, timeout=60.0):
    """Polls until `condition()` is true."""
    end = time.monotonic() + timeout * slowness()
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.02)


def processes_naming(text):
    """Ids of live processes (no zombies) with `text` on their command line."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


if __name__ == "__main__":
    unittest.main()
