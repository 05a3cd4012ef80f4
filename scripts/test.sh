#!/usr/bin/env bash
# Sets up, builds and tests everything that needs no GPU; one command on a fresh machine.
#
#   scripts/test.sh                     all tests and checks, preset cpu
#   scripts/test.sh --preset asan       another preset: cpu, asan, tsan
#   scripts/test.sh -L unit -R gemm     only the tests that ctest picks with these options
#   scripts/test.sh --checks-off        without scripts/check.sh and the CUDA compile
#
# Each ctest, each check of scripts/check.sh and each CUDA preset counts as one test. The last line is
# 'N passed, N failed, N skipped'; the exit code is 0 only if something passed and nothing failed.
# -L, -LE, -R and -E go to ctest; with one of them, and with asan and tsan, the checks are off.
# Nothing is read from the terminal.
set -uo pipefail
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
export PYTHONDONTWRITEBYTECODE=1

preset=cpu
checks=yes
selection=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset | -L | -LE | -R | -E)
      if [ $# -lt 2 ]; then
        echo "test: $1 needs a value" >&2
        exit 2
      fi
      if [ "$1" = --preset ]; then
        preset=$2
      else
        selection+=("$1" "$2")
        checks=no
      fi
      shift 2
      ;;
    --checks-off)
      checks=no
      shift
      ;;
    -h | --help)
      sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "test: unknown option '$1' (known: --preset, --checks-off, -L, -LE, -R, -E)" >&2
      exit 2
      ;;
  esac
done
case $preset in
  cpu) ;;
  asan | tsan) checks=no ;;
  *)
    echo "test: no preset '$preset' to test (known: cpu, asan, tsan)" >&2
    exit 2
    ;;
esac

passed=0 failed=0 skipped=0
declare -a failures=()
record() {  # record passed|failed|skipped NAME
  case $1 in
    passed) passed=$((passed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    *)
      failed=$((failed + 1))
      failures+=("$2")
      ;;
  esac
  printf '%-8s %s\n' "$1" "$2"
}
finish() {
  [ $passed -gt 0 ] || [ $failed -gt 0 ] || record failed "no test ran"
  if [ $failed -gt 0 ]; then
    printf '\nfailed:\n'
    printf '  %s\n' "${failures[@]}"
  fi
  echo "$passed passed, $failed failed, $skipped skipped"
  [ $failed -eq 0 ]
  exit
}
stage() { printf '\n== %s (%d s)\n' "$1" $SECONDS; }

# The newest nvcc in the usual places, if it is 12.8 or later.
find_nvcc() {
  local nvcc version
  for nvcc in $(command -v nvcc) /usr/local/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc; do
    [ -x "$nvcc" ] || continue
    version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    if printf '12.8\n%s\n' "$version" | sort -V -C; then
      echo "$nvcc"
      return
    fi
  done
}

# Compiles every CUDA source, and of the rest only the core library, which sees the CUDA headers' types.
compile_preset() {
  local name=$1 objects
  configure "$name" -DK25_BUILD_TESTS=OFF || return
  # Kernels (.cu) and the sources that call CUDA's libraries.
  mapfile -t objects < <(ninja -C "build/$name" -t targets all |
    sed -n 's/^\(.*\(\.cu\|\(cuda\|cudnn\|nccl\)[^/]*\.cpp\)\.o\): .*/\1/p')
  echo "$name: ${#objects[@]} CUDA sources"
  build "$name" k25_kernels_core "${objects[@]}"
}

# What stands in the way of a CUDA build here; nothing is printed when nothing does.
cuda_obstacle() {
  local nvcc=$1 include header
  [ -n "$nvcc" ] || { echo "no nvcc of version 12.8 or later"; return; }
  include=$(dirname "$nvcc")/../include
  for header in cudnn.h nccl.h cublasLt.h; do
    [ -e "$include/$header" ] || [ -e "/usr/include/$header" ] || { echo "no $header"; return; }
  done
}

compile_cuda() {
  local nvcc obstacle name
  nvcc=$(find_nvcc)
  obstacle=$(cuda_obstacle "$nvcc")
  for name in h200 cuda-portable; do
    if [ -n "$obstacle" ]; then
      record skipped "compile/$name: $obstacle"
    elif CUDACXX=$nvcc compile_preset $name; then
      record passed "compile/$name"
    else
      record failed "compile/$name"
    fi
  done
}

run_checks() {
  local name
  for name in $(scripts/check.sh --list); do
    if K25_TIDY_WITHOUT_TESTS=1 scripts/check.sh "$name"; then record passed "check/$name"; else record failed "check/$name"; fi
  done
}

run_ctest() {
  local junit=$PWD/build/$preset/junit.xml counts before=$failed code
  rm -f "$junit"
  ctest --preset "$preset" --parallel "$cores" --output-junit "$junit" "${selection[@]}"
  code=$?
  # ctest's own last line counts a skip as passed and its exit code forgives an empty selection.
  if counts=$(python3 scripts/sum_junit.py "$junit"); then
    while read -r status name; do
      case $status in
        passed) passed=$((passed + 1)) ;;
        *) record "$status" "$name" ;;
      esac
    done <<<"$counts"
  else
    record failed "ctest left no results"
  fi
  [ $code -eq 0 ] || [ "$failed" -gt "$before" ] || record failed "ctest ended with $code"
}

stage "set-up"
if [ $checks = yes ]; then scripts/setup.sh --checks; else scripts/setup.sh; fi || {
  record failed "set-up"
  finish
}
# shellcheck source=scripts/common.sh
source scripts/common.sh
[ -z "${CI-}" ] || export CCACHE_NOHASHDIR=1  # another clone's objects differ in debug paths alone

stage "build, preset $preset"
if ! configure "$preset" || ! build "$preset"; then
  record failed "build/$preset"
  finish
fi
if [ $checks = yes ]; then
  stage "checks"
  run_checks
  stage "CUDA compile"
  compile_cuda
fi
stage "tests"
run_ctest
stage "done"
finish
