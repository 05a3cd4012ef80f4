#!/usr/bin/env bash
# Installs the kernel library of a build to a temporary prefix, then configures, builds and runs
# tests/consumer against it, as an inference engine would.
#
#   install_test.sh BUILD_DIR CONSUMER_SOURCE_DIR CMAKE CXX_COMPILER [CXX_FLAGS]
set -euo pipefail

build=$1 source=$2 cmake=$3 compiler=$4 flags=${5:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "install_test: $1" >&2
  exit 1
}

"$cmake" --install "$build" --component kernels --prefix "$work/prefix" >"$work/install.log" 2>&1 ||
  { cat "$work/install.log" >&2; fail "cmake --install failed"; }

# Nothing but kernels: their headers, one archive a module, and the package files.
strays=$(cd "$work/prefix" && find . -type f ! -path './include/k25/kernels/*.h' \
  ! -name 'libk25_kernels_*.a' ! -path '*/cmake/k25/k25*.cmake')
[[ -z $strays ]] || fail "installed more than the kernel library: $strays"

# The package must not look back at the source or build tree.
package=$(find "$work/prefix" -name 'k25_targets*.cmake')
[[ -n $package ]] || fail "no k25_targets.cmake was installed"
repository=$(cd "$source/../.." && pwd)
for path in "$repository" "$build"; do
  # shellcheck disable=SC2086  # one word a file
  if grep -F "$path/" $package; then
    fail "the installed package names $path"
  fi
done

"$cmake" -S "$source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="$flags" >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log" >&2; fail "the consumer does not configure"; }
"$cmake" --build "$work/build" >"$work/build.log" 2>&1 ||
  { cat "$work/build.log" >&2; fail "the consumer does not build"; }

output=$("$work/build/consumer") || fail "the consumer failed: $output"
echo "$output"
[[ $output == "consumer ok" ]] || fail "unexpected output"
