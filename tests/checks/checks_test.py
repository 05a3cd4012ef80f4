"""Every rule of scripts/check.sh catches a file that breaks it, and leaves a good tree alone."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "build/tools/bin"

# A small tree that keeps all rules; each test adds one file that does not.
GOOD = {
    "README.md": "See kernels/core/check.h and [the op](kernels/gemm/gemm.h).\n",
    "kernels/core/CMakeLists.txt": "k25_add_module(INSTALL NAME kernels_core\n  HEADERS check.h)\n",
    "kernels/core/check.h": "#pragma once\n#include <string>\n",
    "kernels/core/pool.h": "#pragma once\n",
    "kernels/gemm/CMakeLists.txt":
        "k25_add_module(INSTALL NAME kernels_gemm\n  HEADERS gemm.h\n  SOURCES gemm.cpp\n  DEPS k25::kernels_core)\n",
    "kernels/gemm/gemm.h": '#pragma once\n#include "kernels/core/check.h"\n',
    "kernels/gemm/gemm.cpp": '#include "kernels/gemm/gemm.h"\n#include <Eigen/Core>\n',
    "kernels/norm/CMakeLists.txt":
        "k25_add_module(INSTALL NAME kernels_norm\n  HEADERS norm.h\n  DEPS k25::kernels_core)\n",
    "kernels/norm/norm.h": '#pragma once\n#include "kernels/core/check.h"\n',
    "parallel/CMakeLists.txt":
        "k25_add_module(NAME parallel HEADERS world.h SOURCES world.cpp\n"
        "  DEPS k25::kernels PRIVATE_DEPS MPI::MPI_CXX)\n",
    "parallel/world.h": '#pragma once\n#include "kernels/core/check.h"\n',
    "parallel/world.cpp": '#include <mpi.h>\n#include "parallel/world.h"\n#include "kernels/gemm/gemm.h"\n',
    "trainer/CMakeLists.txt": "k25_add_module(NAME trainer SOURCES step.cpp DEPS k25::parallel)\n",
    "trainer/step.cpp": '#include "parallel/world.h"\n',
}


class TreeTest(unittest.TestCase):
    def setUp(self):
        self.tree = pathlib.Path(tempfile.mkdtemp(prefix="k25-checks-"))
        self.addCleanup(shutil.rmtree, self.tree)
        for path, text in GOOD.items():
            self.write(path, text)

    def write(self, path, text):
        (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / path).write_text(text)

    def run_check(self, name):
        done = subprocess.run([sys.executable, ROOT / f"scripts/check_{name}.py", self.tree],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def assert_caught(self, name, *pieces):
        code, output = self.run_check(name)
        self.assertEqual(code, 1, output)
        for piece in pieces:
            self.assertIn(piece, output)
        self.assertIn(f"{name}: 1 problems", output)

    def assert_clean(self, name):
        code, output = self.run_check(name)
        self.assertEqual((code, output), (0, f"{name}: ok\n"))


class LayersTest(TreeTest):
    def test_good_tree_passes(self):
        self.assert_clean("layers")

    def test_kernels_includes_trainer(self):
        self.write("trainer/loss.h", "#pragma once\n")
        self.write("kernels/norm/norm_cpu.cpp", '#include "trainer/loss.h"\n')
        self.assert_caught("layers", "kernels/norm/norm_cpu.cpp:1: kernels may not include trainer/loss.h")

    def test_core_includes_op(self):
        self.write("kernels/core/check.cpp", '\n#include "kernels/norm/norm.h"\n')
        self.assert_caught("layers", "kernels/core/check.cpp:2: kernels/core may not include kernels/norm/norm.h")

    def test_data_includes_op(self):
        self.write("data/loader.cpp", '#include "kernels/gemm/gemm.h"\n')
        self.assert_caught("layers", "data/loader.cpp:1: data may not include kernels/gemm/gemm.h")

    def test_optim_includes_trainer(self):
        self.write("optim/adamw.cpp", '#include "trainer/step.cpp"\n')
        self.assert_caught("layers", "optim/adamw.cpp:1: optim may not include trainer/step.cpp")

    def test_product_includes_tests(self):
        self.write("tests/helper.h", "#pragma once\n")
        self.write("trainer/a.cpp", '#include "tests/helper.h"\n')
        self.assert_caught("layers", "trainer/a.cpp:1: trainer may not include tests/helper.h")

    def test_op_without_deps(self):
        self.write("kernels/norm/norm.cpp", '#include "kernels/gemm/gemm.h"\n')
        self.assert_caught("layers", "kernels/norm/norm.cpp:1: kernels/gemm/gemm.h belongs to k25::kernels_gemm, "
                           "which is not in the DEPS of kernels_norm")

    def test_op_with_deps_passes(self):
        self.write("kernels/norm/norm.cpp", '#include "kernels/gemm/gemm.h"\n')
        self.write("kernels/norm/CMakeLists.txt",
                   "k25_add_module(NAME kernels_norm HEADERS norm.h DEPS k25::kernels_gemm)\n")
        self.assert_clean("layers")

    def test_cycle(self):
        self.write("kernels/core/CMakeLists.txt", "k25_add_module(NAME kernels_core HEADERS check.h)\n")
        self.write("kernels/norm/CMakeLists.txt",
                   "k25_add_module(NAME kernels_norm HEADERS norm.h\n  DEPS k25::kernels_core k25::kernels_rope)\n")
        self.write("kernels/rope/CMakeLists.txt",
                   "k25_add_module(NAME kernels_rope DEPS k25::kernels_norm)\n")
        code, output = self.run_check("layers")
        self.assertEqual(code, 1)
        self.assertIn("kernels/norm/CMakeLists.txt:1: kernels_norm depends on itself", output)
        self.assertIn("kernels/rope/CMakeLists.txt:1: kernels_rope depends on itself", output)

    def test_cmake_dependency_upwards(self):
        self.write("kernels/norm/CMakeLists.txt",
                   "# a comment\nk25_add_module(NAME kernels_norm HEADERS norm.h\n"
                   "  DEPS k25::kernels_core PRIVATE_DEPS k25::parallel)\n")
        self.assert_caught("layers", "kernels/norm/CMakeLists.txt:2: kernels may not depend on k25::parallel")

    def test_cmake_dependency_unknown(self):
        self.write("trainer/CMakeLists.txt", "k25_add_module(NAME trainer SOURCES step.cpp DEPS k25::paralel k25::parallel)\n")
        self.assert_caught("layers", "trainer depends on k25::paralel, which no k25_add_module makes")

    def test_cmake_links_mpi(self):
        self.write("trainer/CMakeLists.txt",
                   "k25_add_module(NAME trainer SOURCES step.cpp\n  DEPS k25::parallel MPI::MPI_CXX)\n")
        self.assert_caught("layers", "trainer/CMakeLists.txt:2: only parallel may link MPI")

    def test_mpi_outside_parallel(self):
        self.write("trainer/a.cpp", "#include <mpi.h>\n")
        self.assert_caught("layers", "trainer/a.cpp:1: mpi.h only in .cpp and .cu files of parallel")

    def test_mpi_in_header(self):
        self.write("parallel/world.h", "#pragma once\n#include <mpi.h>\n")
        self.assert_caught("layers", "parallel/world.h:2: mpi.h only in .cpp and .cu files of parallel")

    def test_nccl_in_kernels(self):
        self.write("kernels/norm/norm.cu", "#include <nccl.h>\n")
        self.assert_caught("layers", "kernels/norm/norm.cu:1: nccl.h only in")

    def test_relative_include(self):
        self.write("kernels/norm/norm.cpp", '#include "../core/check.h"\n')
        self.assert_caught("layers", "kernels/norm/norm.cpp:1: relative include ../core/check.h")

    def test_unrooted_include(self):
        self.write("kernels/norm/norm.cpp", '#include "norm.h"\n')
        self.assert_caught("layers", 'kernels/norm/norm.cpp:1: include "norm.h" is not rooted')

    def test_missing_header(self):
        self.write("kernels/norm/norm.cpp", '#include "kernels/norm/nrom.h"\n')
        self.assert_caught("layers", "kernels/norm/norm.cpp:1: no such header: kernels/norm/nrom.h")

    def test_cuda_in_public_header(self):
        self.write("kernels/norm/norm.h", "#pragma once\n#include <cuda_runtime.h>\n")
        self.assert_caught("layers", "kernels/norm/norm.h:2: cuda_runtime.h in a public header")

    def test_cuda_in_data(self):
        self.write("data/loader.cpp", "#include <cuda_bf16.h>\n")
        self.assert_caught("layers", "data/loader.cpp:1: data may not include cuda_bf16.h")

    def test_public_header_includes_private(self):
        self.write("kernels/norm/norm.h", '#pragma once\n#include "kernels/core/pool.h"\n')
        self.assert_caught("layers", "kernels/norm/norm.h:2: a public header includes the private kernels/core/pool.h")

    def test_vendor_library_in_kernels(self):
        self.write("kernels/norm/norm.cpp", "#include <yaml-cpp/yaml.h>\n")
        self.assert_caught("layers", "kernels/norm/norm.cpp:1: the kernel library may not include yaml-cpp/yaml.h")

    def test_eigen_outside_gemm(self):
        self.write("kernels/norm/norm.cpp", "#include <Eigen/Dense>\n")
        self.assert_caught("layers", "kernels/norm/norm.cpp:1: the kernel library may not include Eigen/Dense")


class SizesTest(TreeTest):
    def test_limits_pass(self):
        self.write("kernels/norm/norm.h", "\n" * 300)
        self.write("kernels/norm/norm.cpp", "\n" * 400)
        self.assert_clean("sizes")

    def test_long_header(self):
        self.write("kernels/norm/norm.h", "\n" * 301)
        self.assert_caught("sizes", "kernels/norm/norm.h: 301 lines, at most 300")

    def test_long_source(self):
        self.write("kernels/norm/norm.cpp", "\n" * 801)
        self.assert_caught("sizes", "kernels/norm/norm.cpp: 801 lines, at most 800")

    def test_note_above_the_aim(self):
        self.write("kernels/norm/norm.cpp", "\n" * 401)
        code, output = self.run_check("sizes")
        self.assertEqual(code, 0)
        self.assertIn("kernels/norm/norm.cpp: note: 401 lines, aim below 400", output)


class DocsTest(TreeTest):
    def test_good_tree_passes(self):
        self.write("docs/a.md", "kernels/{gemm,norm}/*.h, kernels/gemm/, kernels/<op>/<op>.h, README.md,\n"
                   "kernels/NAME/CMakeLists.txt, build/cpu, [up](../README.md#top), and/or, x/kernels/y.\n")
        self.assert_clean("docs")

    def test_missing_path(self):
        self.write("docs/a.md", "One.\nSee `kernels/gemm/gem.h`.\n")
        self.assert_caught("docs", "docs/a.md:2: kernels/gemm/gem.h does not exist")

    def test_missing_path_in_braces(self):
        self.write("docs/a.md", "See kernels/{gemm,nrom}/CMakeLists.txt.\n")
        self.assert_caught("docs", "docs/a.md:1: kernels/nrom/CMakeLists.txt does not exist")

    def test_empty_glob(self):
        self.write("docs/a.md", "See kernels/*/*.cu\n")
        self.assert_caught("docs", "docs/a.md:1: kernels/*/*.cu does not exist")

    def test_missing_root_file(self):
        self.write("docs/a.md", "See CONTRIBUTING.md\n")
        self.assert_caught("docs", "docs/a.md:1: CONTRIBUTING.md does not exist")

    def test_missing_link(self):
        self.write("docs/a.md", "See [this](b.md)\n")
        self.assert_caught("docs", "docs/a.md:1: link to b.md, which does not exist")


class WordsTest(TreeTest):
    def test_good_tree_passes(self):
        self.write("trainer/a.cpp", "// TO" "DO(#12): more\nenum class Kind { kA };\n")
        self.assert_clean("words")

    def check_line(self, line, why, path="trainer/a.cpp"):
        self.write(path, f"\n{line}\n")
        self.assert_caught("words", f"{path}:2: {why}")

    def test_to_do_without_number(self):
        self.check_line("// TO" "DO: more", "name the issue")

    def test_plain_enum(self):
        self.check_line("enum Kind { kA };", "enum class only")

    def test_using_directive(self):
        self.check_line("using namespace std;", "no using-directives in headers", "trainer/a.h")

    def test_non_ascii_source(self):
        self.check_line("// \u2264", "C++ sources are ASCII")

    def test_tab(self):
        self.check_line("\tint x;", "no tabs")

    def test_trailing_blank(self):
        self.check_line("a ", "blanks at the end", "docs/a.md")

    def test_path_of_this_checkout(self):
        self.check_line(f"cd {self.tree.resolve()}/build", "names a path or host of this machine", "docs/a.md")

    def test_home_folder(self):
        home = os.path.expanduser("~")
        self.check_line(f"see {home}/notes", "names a path or host of this machine", "docs/a.md")

    def test_no_newline_at_the_end(self):
        self.write("docs/a.md", "text")
        self.assert_caught("words", "docs/a.md: no newline at the end")


@unittest.skipUnless((TOOLS / "clang-tidy").exists(), "scripts/setup.sh --checks installs the tools")
class ToolsTest(unittest.TestCase):
    """The pinned tools with the repository's configuration, on one bad file each."""

    def setUp(self):
        # Inside the tree, so that the tools find .clang-format and .clang-tidy as they do for a source.
        (ROOT / "build").mkdir(exist_ok=True)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bad-", dir=ROOT / "build"))
        self.addCleanup(shutil.rmtree, self.folder)

    def tidy(self, text):
        source = self.folder / "bad.cpp"
        source.write_text(text)
        (self.folder / "compile_commands.json").write_text(json.dumps([
            {"directory": str(self.folder), "file": str(source), "command": f"g++ -std=c++20 -c {source}"}]))
        done = subprocess.run([TOOLS / "clang-tidy", "--quiet", "-p", self.folder, source],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def assert_tidy_catches(self, text, *pieces):
        code, output = self.tidy(text)
        self.assertNotEqual(code, 0, output)
        for piece in pieces:
            self.assertIn(piece, output)

    def test_format(self):
        bad = self.folder / "bad.cpp"
        bad.write_text("int  main( ){return 0 ;}\n")
        command = [TOOLS / "clang-format", "--dry-run", "--Werror", bad]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("code should be clang-formatted", done.stderr)
        bad.write_text("int main() { return 0; }\n")
        self.assertEqual(subprocess.run(command, check=False).returncode, 0)

    def test_format_column_limit(self):
        bad = self.folder / "bad.cpp"
        bad.write_text(f"int x = {' + '.join(['1'] * 25)};\n")  # 105 columns
        done = subprocess.run([TOOLS / "clang-format", bad], capture_output=True, text=True, check=True)
        self.assertEqual(len(done.stdout.splitlines()), 2)

    def test_tidy_accepts_house_style(self):
        self.assertEqual(self.tidy(
            "#include <source_location>\n#define K25_TWICE(x) ((x) + (x))\nnamespace k25 {\n"
            "enum class Kind { kOne };\nconstexpr int kSize = 3;\nstruct In {\n  int x_ND = 0;\n};\n"
            "class Pool {\n public:\n  int size() const { return size_; }\n\n private:\n  int size_ = kSize;\n};\n"
            "int add_all(const In& in, int q_BTHK) { return K25_TWICE(in.x_ND) + q_BTHK; }\n"
            "}  // namespace k25\n"), (0, ""))

    def test_tidy_names(self):
        for text, message in (
                ("int AddAll() { return 1; }\n", "invalid case style for function 'AddAll'"),
                ("struct in_args {};\n", "invalid case style for struct 'in_args'"),
                ("enum class Kind { ONE };\n", "invalid case style for enum constant 'ONE'"),
                ("constexpr int size = 3;\n", "invalid case style for constexpr variable 'size'"),
                ("class A {\n  int size = 3;\n};\n", "invalid case style for private member 'size'"),
                ("int f(int numRows) { return numRows; }\n", "invalid case style for parameter 'numRows'"),
                ("int f() {\n  int numRows = 1;\n  return numRows;\n}\n", "invalid case style for variable 'numRows'"),
                ("#define TWICE(x) ((x) + (x))\n", "invalid case style for macro definition 'TWICE'")):
            with self.subTest(message):
                self.assert_tidy_catches(text, message, "readability-identifier-naming")

    def test_tidy_global(self):
        self.assert_tidy_catches("int counter = 0;\n", "cppcoreguidelines-avoid-non-const-global-variables")

    def test_tidy_long_function(self):
        body = "  x += 1;\n" * 61
        self.assert_tidy_catches(f"int f(int x) {{\n{body}  return x;\n}}\n", "readability-function-size")

    def test_tidy_use_after_move(self):
        self.assert_tidy_catches(
            "#include <string>\n#include <utility>\nvoid take(std::string);\n"
            "std::size_t f(std::string s) {\n  take(std::move(s));\n  return s.size();\n}\n",
            "bugprone-use-after-move")


class FormatCheckTest(unittest.TestCase):
    """check.sh format with a clang-format of the test's own."""

    def check(self, clang_format):
        root = pathlib.Path(tempfile.mkdtemp(prefix="k25-format-"))
        self.addCleanup(shutil.rmtree, root)
        for folder in ("scripts", "build/tools/bin"):
            (root / folder).mkdir(parents=True)
        for name in ("check.sh", "repo_files.py"):
            shutil.copy(ROOT / "scripts" / name, root / "scripts")
        (root / "a.cpp").write_text("int x;\n")
        for path, text in (("scripts/setup.sh", "exit 0"), ("build/tools/bin/clang-format", clang_format)):
            (root / path).write_text(f"#!/bin/sh\n{text}\n")
            (root / path).chmod(0o755)
        done = subprocess.run([root / "scripts/check.sh", "format"], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def test_a_clang_format_that_does_not_run_is_no_success(self):
        code, text = self.check("echo broken >&2; exit 1")
        self.assertEqual(code, 1, text)
        self.assertIn("broken", text)
        self.assertIn("clang-format does not run", text)

    def test_a_file_that_differs_is_named(self):
        code, text = self.check("echo 'a.cpp:1:2: error: code should be clang-formatted' >&2; exit 1")
        self.assertEqual((code, text.splitlines()[0]), (1, "a.cpp:1: format"), text)

    def test_nothing_to_say(self):
        self.assertEqual(self.check("exit 0"), (0, "format: ok\n"))


if __name__ == "__main__":
    unittest.main()
