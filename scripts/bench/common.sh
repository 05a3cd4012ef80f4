# Sourced by the scripts of this folder: their options, how K25 is started, what is kept of its output.
# shellcheck shell=bash
set -uo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=scripts/common.sh
source scripts/common.sh
export PYTHONDONTWRITEBYTECODE=1
script=$(basename "$0" .sh)

# What options change; a script sets its own defaults before it reads them.
gpus=1 steps=20 warmup=3 k25=build/h200/trainer/cli/k25 python=python3 out='' rows='' corpus=''
config=configs/dense-1.3b.yaml
sets=()                                   # --set KEY=VALUE, repeated: after the script's own
shown='^(step ranks=|offload copy_ms=).*' # the part of what a program prints that goes to the terminal too
failed=0

stop() {
  echo "$script: $1" >&2
  exit 2
}

# read_options "NAMES THAT ARE KNOWN" ARGUMENTS: each has a value, which becomes the variable of that name.
read_options() {
  local known=$1 name value
  shift
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    esac
    name=${1#--}
    if [[ $1 != --* || ! $name =~ ^[a-z0-9]+$ || " $known " != *" $name "* ]]; then
      stop "unknown option '$1'; see the head of scripts/bench/$script.sh"
    fi
    [ $# -gt 1 ] || stop "$1 needs a value"
    value=$2
    case $name in config | corpus | k25 | out)
      [[ $value = /* || $called_from = "$PWD" ]] || value=$called_from/$value ;;
    esac
    if [ "$name" = set ]; then sets+=(--set "$value"); else declare -g "$name=$value"; fi
    shift 2
  done
  require_numbers "$gpus" "$steps"
  [[ $warmup = 0 ]] || require_numbers "$warmup"
  [ -x "$k25" ] || stop "$k25 is not there; build the preset h200, or give --k25 PROGRAM"
  command -v "$python" >/dev/null || stop "$python is not there; give --python PROGRAM"
  [ -r "$config" ] || stop "$config cannot be read; give --config FILE"
}

require_torch() {
  "$python" -c 'import torch' 2>/dev/null || stop "$python has no PyTorch; give --python PROGRAM of one that has"
}

require_numbers() {
  local number
  for number in "$@"; do
    [[ $number =~ ^[1-9][0-9]{0,5}$ ]] || stop "'$number' is no positive number"
  done
}

# choose_rows NAMES: $rows (as none,all) becomes the array chosen, in the order of NAMES; all when none is named.
choose_rows() {
  local name wanted=",${rows:-$(IFS=, && echo "$*")},"
  chosen=()
  for name in "$@"; do
    [[ $wanted != *",$name,"* ]] || chosen+=("$name")
    wanted=${wanted//",$name,"/,}
  done
  [ "$wanted" = , ] || stop "--rows $rows: rows are $(IFS=, && echo "$*"), each once"
}

# The file that keeps what every program printed.
open_out() {
  if [ -z "$out" ]; then
    out=$(mktemp) || exit 1
    trap 'rm -f "$out"' EXIT
  fi
  : >"$out" || exit 1
}

# launcher N: the array launch, which stands before K25 on N GPUs.
launcher() {
  launch=()
  [ "$1" = 1 ] || launch=(mpirun -np "$1" --bind-to none)
}

# measure CODE NAME COMMAND...: keeps all that it prints under '== NAME'. CODE: with which it ends when all is well.
measure() {
  local wanted=$1 name=$2 code
  shift 2
  echo "== $name" | tee -a "$out"
  "$@" 2>&1 | tee -a "$out" | grep --line-buffered -oE "$shown"
  code=${PIPESTATUS[0]}
  [ "$code" != "$wanted" ] || return 0
  failed=1 # for the script's own exit code
  echo "$script: $name failed with exit code $code: $(said)" >&2
  return 1
}

# The error that the program of the last heading named, else its last two lines.
said() {
  awk '/^== / { error = ""; last = ""; next } /[Ee]rror: / { error = $0 } { two = last "\n" $0; last = $0 }
    END { print error ? error : two }' "$out"
}

# Says why, where K25 cannot run at all; asked only after a row has failed.
require_device() {
  local device=cuda word
  for word in "${sets[@]}"; do
    [[ $word != train.device=* ]] || device=${word#train.device=}
  done
  launcher "$1"
  "${launch[@]}" "$k25" bench copy --device "$device" --min-bytes 4 --max-bytes 4 >>"$out" 2>&1 ||
    stop "K25 does not start on $1 x $device: $(said)"
}

# measure_step NAME GPUS [--set KEY=VALUE]...: a row of k25 bench step. One that fails is named and left out.
measure_step() {
  local name=$1 ranks=$2
  shift 2
  launcher "$ranks"
  measure 0 "$name" "${launch[@]}" "$k25" bench step --config "$config" --set train.device=cuda "$@" "${sets[@]}" \
    --steps "$steps" --warmup "$warmup" || require_device "$ranks"
}

# What the scripts of k25 train need: a folder that goes away, --out in it unless it is to be kept, and a corpus; without
# --corpus the text of this repository, with a vocabulary that every config holds.
open_folder() {
  folder=$(mktemp -d) || exit 1
  trap 'rm -rf "$folder"' EXIT
  [ -n "$out" ] || out=$folder/out
  : >"$out" || exit 1
  if [ -z "$corpus" ]; then
    corpus=$folder/corpus
    "$k25" prepare docs kernels optim parallel trainer tests --vocab 1000 --out "$corpus" >"$folder/prepared" 2>&1 ||
      stop "k25 prepare failed: $(tail -n 1 "$folder/prepared")"
  fi
  [ -r "$corpus/manifest.json" ] || stop "$corpus holds no manifest.json; give --corpus FOLDER of k25 prepare"
}

# train_steps COUNT [--set KEY=VALUE]...: the array training, k25 train that ends with 143 after COUNT steps.
# NOTE: a run that ends by itself writes a checkpoint, here up to 100 GB; one that gets SIGTERM before step COUNT + 1
# writes none. It may get to a few steps more where these take milliseconds. The run directory holds text alone.
train_steps() {
  local count=$1
  shift
  training=("${launch[@]}" "$k25" train "$config" --set train.device=cuda --set train.steps=1000000
    --set train.resume=none --set data.train="$corpus/manifest.json" --set data.validation='{}' --set eval.every=0
    --set checkpoint.every=0 "$@" "${sets[@]}"
    --set debug.kill="{rank: 0, point: step, step: $((count + 1)), signal: 15}")
}
