# Sourced by quickstart.sh, test.sh and the scripts of bench/: how a build is configured, and what mpirun needs here.
# shellcheck shell=bash

if [ "$(uname -m)" != x86_64 ]; then
  echo "K25's CPU kernels are built for x86-64, this machine is $(uname -m)" >&2
  exit 1
fi
cores=$(nproc)
# mpirun refuses root, and more ranks than cores, unless told; containers and small machines have both.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

# configure PRESET [cmake arguments]: quiet unless it fails.
# Warnings are errors with the compiler that CI uses; a newer one may know more warnings.
configure() {
  local preset=$1 werror=OFF
  shift
  case $("${CXX:-c++}" -dumpversion) in 12 | 12.*) werror=ON ;; esac
  if command -v ccache >/dev/null && [ -z "${CMAKE_CXX_COMPILER_LAUNCHER-}" ]; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$PWD
  fi
  mkdir -p build
  if ! cmake --preset "$preset" -DK25_WERROR=$werror "$@" >"build/configure-$preset.log" 2>&1; then
    tail -n 30 "build/configure-$preset.log"
    echo "configuring preset $preset failed; the whole log: build/configure-$preset.log"
    return 1
  fi
}

# build PRESET [ninja targets]: shows what fails, in full, and nothing else.
build() {
  local preset=$1
  shift
  local log=build/build-$preset.log
  if ! cmake --build --preset "$preset" --parallel "$cores" ${1:+--target "$@"} >"$log" 2>&1; then
    grep -A 30 '^FAILED: ' "$log" | head -n 120
    echo "building preset $preset failed; the whole log: $log"
    return 1
  fi
}
