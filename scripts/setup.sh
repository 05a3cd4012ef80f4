#!/usr/bin/env bash
# Installs every system package that K25 needs, on Debian 12 and Ubuntu 24.04 (or newer).
#
#   scripts/setup.sh            what building, training and the tests need
#   scripts/setup.sh --checks   also the pinned clang-format and clang-tidy of scripts/check.sh
#   scripts/setup.sh --tools    only these two; no system package is looked at
#   scripts/setup.sh --list     prints the package names and stops
#
# Run it as root or as a user who may sudo. It asks nothing, and does nothing that is done already.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

packages=(
  build-essential cmake ninja-build git pkg-config python3
  openmpi-bin libopenmpi-dev libhwloc-dev
  libhdf5-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libfmt-dev
  libeigen3-dev libssl-dev libxxhash-dev libsentencepiece-dev liburing-dev
  libgtest-dev
  gnuplot-nox
)
clang_format_version=19.1.7
clang_tidy_version=19.1.0

die() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

checks=no
system=yes
for argument in "$@"; do
  case $argument in
    --checks) checks=yes ;;
    --tools)
      checks=yes
      system=no
      ;;
    --list)
      printf '%s\n' "${packages[@]}"
      exit 0
      ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) die "unknown option '$argument' (known: --checks, --tools, --list, --help)" ;;
  esac
done
if [ "$checks" = yes ]; then packages+=(python3-venv); fi

missing=()
find_missing() {
  missing=()
  local name
  for name in "${packages[@]}"; do
    if [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" != installed ]; then
      missing+=("$name")
    fi
  done
}

# Shows the end of a failed command's output, then the reason in one line.
die_with_log() {
  local log=$1
  shift
  tail -n 15 "$log" >&2
  rm -f "$log"
  die "$@"
}

install_packages() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing: ${missing[*]}" \
      "installing them needs root and there is no sudo: run this script as root once"
    if ! sudo -n true 2>/dev/null && [ ! -t 0 ]; then
      die "these packages are missing: ${missing[*]}" \
        "sudo wants a password and there is no terminal: run this script as root once"
    fi
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a
    apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2 -o Acquire::http::Timeout=30)
  local log
  log=$(mktemp)
  echo "setup: installing ${missing[*]}"
  # A source that cannot be reached is a warning of 'update'; whether it mattered, 'install' tells.
  "${apt[@]}" update >"$log" 2>&1 </dev/null || true
  if ! "${apt[@]}" install --no-install-recommends "${missing[@]}" >>"$log" 2>&1 </dev/null; then
    die_with_log "$log" "apt-get could not install: ${missing[*]}" \
      "is the network up, and are Debian's main (Ubuntu's main and universe) enabled?"
  fi
  rm -f "$log"
  find_missing
  [ ${#missing[@]} -eq 0 ] || die "still missing after the installation: ${missing[*]}"
}

install_system() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    die "only Debian 12 and Ubuntu 24.04 are supported; elsewhere install by hand what" \
      "  ${packages[*]}" "provide, and skip this script"
  fi
  find_missing
  if [ ${#missing[@]} -gt 0 ]; then
    install_packages
  else
    echo "setup: all ${#packages[@]} packages are there"
  fi
}

# The two checkers change what they accept from version to version, hence a version, and hence a
# folder of their own instead of the distribution's packages.
install_tools() {
  local tools=$root/build/tools
  local wanted="clang-format==$clang_format_version clang-tidy==$clang_tidy_version"
  if [ "$(cat "$tools/versions" 2>/dev/null)" = "$wanted" ] && [ -x "$tools/bin/clang-tidy" ]; then
    echo "setup: $wanted are there"
    return
  fi
  echo "setup: installing $wanted in build/tools"
  rm -rf "$tools"
  mkdir -p "$root/build"
  local log
  log=$(mktemp)
  # shellcheck disable=SC2086  # two words on purpose
  if ! { python3 -m venv "$tools" && "$tools/bin/python" -m pip install --no-input $wanted; } \
    >"$log" 2>&1 </dev/null; then
    rm -rf "$tools"
    die_with_log "$log" "pip could not install $wanted: is the network up, and python3-venv installed?"
  fi
  rm -f "$log"
  echo "$wanted" >"$tools/versions"
}

if [ "$system" = yes ]; then install_system; fi
if [ "$checks" = yes ]; then install_tools; fi
