#!/usr/bin/env bash
# Checks of the text of the repository; scripts/test.sh runs them all.
#
#   scripts/check.sh                    all checks
#   scripts/check.sh format layers ...  these checks
#   scripts/check.sh --fix              rewrites the C++ sources in the right format
#   scripts/check.sh --list             prints the checks' names
#
# format  clang-format (pinned)            sizes  file lengths
# tidy    clang-tidy (pinned; .clang-tidy) docs   paths named in Markdown exist
# layers  who may include and link whom    words  text that must not be here
#
# scripts/test.sh sets K25_TIDY_WITHOUT_TESTS, which halves tidy's time: run it by hand before a change of tests.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
export PYTHONDONTWRITEBYTECODE=1
all=(format layers sizes docs words tidy)
tools=build/tools/bin

ensure_tools() {
  local log
  log=$(mktemp)
  scripts/setup.sh --tools >"$log" 2>&1 || { cat "$log" && rm -f "$log" && return 1; }
  rm -f "$log"
}

sources() {
  python3 -c 'import pathlib, sys
sys.path.insert(0, "scripts")
from repo_files import repo_files
for name in repo_files(pathlib.Path(".").resolve()):
    if name.endswith((".h", ".cuh", ".cpp", ".cu")):
        print(name, end="\0")'
}

check_format() {
  ensure_tools || return 1
  local said wrong
  if said=$(sources | xargs -0 -r $tools/clang-format --dry-run --Werror 2>&1); then
    echo "format: ok"
    return
  fi
  wrong=$(sed -n 's/^\([^ :]*\):\([0-9]*\):.* error: .*/\1:\2: format/p' <<<"$said" | sort -u -t: -k1,1)
  if [ -z "$wrong" ]; then
    echo "$said" | head -n 5
    echo "format: clang-format does not run"
  else
    echo "$wrong"
    echo "format: $(wc -l <<<"$wrong") files; scripts/check.sh --fix mends them"
  fi
  return 1
}

check_tidy() {
  ensure_tools || return 1
  local build=${K25_TIDY_BUILD:-build/cpu}
  if [ ! -f "$build/compile_commands.json" ]; then
    cmake --preset cpu >"build/configure.log" 2>&1 || {
      tail -n 20 build/configure.log
      return 1
    }
  fi
  python3 scripts/check_tidy.py --build "$build" ${K25_TIDY_WITHOUT_TESTS:+--without-tests}
}

run_check() {
  case $1 in
    format) check_format ;;
    tidy) check_tidy ;;
    layers | sizes | docs | words) python3 "scripts/check_$1.py" . ;;
    *)
      echo "check: no check named '$1' (known: ${all[*]})" >&2
      return 2
      ;;
  esac
}

case ${1-} in
  --list)
    printf '%s\n' "${all[@]}"
    exit 0
    ;;
  --fix)
    ensure_tools || exit 1
    sources | xargs -0 -r $tools/clang-format -i
    exit
    ;;
  -h | --help)
    sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
[ $# -gt 0 ] || set -- "${all[@]}"
failed=0
for name in "$@"; do
  run_check "$name" || failed=1
done
exit $failed
