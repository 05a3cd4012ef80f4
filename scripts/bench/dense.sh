#!/usr/bin/env bash
# K25 and its PyTorch peers on the dense model of configs/dense-1.3b.yaml, back to back on this machine, and one table.
#
#   scripts/bench/dense.sh [--gpus N] [--steps N] [--k25 PROGRAM] [--python PROGRAM] [--out FILE]
#
# --gpus N     1 (default): K25, PyTorch eager, torch.compile and FSDP2 on one GPU
#              more: K25 under mpirun and FSDP2 under torchrun, on N GPUs of this host
# --k25        default build/h200/trainer/cli/k25
# --python     one with PyTorch; default python3
# --out        keep what every program printed; default a temporary file
#
# A peer that fails (out of memory, say) is named and left out. Exit code 2: something is missing.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

gpus=1 steps=20 k25=build/h200/trainer/cli/k25 python=python3 out=

stop() {
  echo "dense: $1" >&2
  exit 2
}

while [ $# -gt 0 ]; do
  case $1 in
    --gpus | --steps | --k25 | --python | --out)
      [ $# -gt 1 ] || stop "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    *) stop "unknown option '$1'; see the head of scripts/bench/dense.sh" ;;
  esac
done
for number in "$gpus" "$steps"; do
  [[ $number =~ ^[1-9][0-9]{0,5}$ ]] || stop "'$number' is no positive number"
done
[ -x "$k25" ] || stop "$k25 is not there; build the preset h200, or give --k25 PROGRAM"
"$python" -c 'import torch' 2>/dev/null || stop "$python has no PyTorch; give --python PROGRAM of one that has"
found=$("$python" -c 'import torch; print(torch.cuda.device_count())') || stop "$python: PyTorch does not start"
[ "$found" -ge "$gpus" ] || stop "PyTorch sees $found GPUs, asked for $gpus"
if [ -z "$out" ]; then
  out=$(mktemp) || exit 1
  trap 'rm -f "$out"' EXIT
fi
: >"$out" || exit 1

measure() {
  local name=$1
  shift
  echo "== $name" | tee -a "$out"
  "$@" 2>&1 | tee -a "$out" | grep -E '^(step ranks=|\{"name")'
  local code=${PIPESTATUS[0]}
  [ "$code" = 0 ] || echo "dense: $name failed with exit code $code; its last lines: $(tail -n 3 "$out")" >&2
  return "$code"
}

own=("$k25" bench step --config configs/dense-1.3b.yaml --set train.device=cuda --steps "$steps" --warmup 10)
[ "$gpus" = 1 ] || own=(mpirun -np "$gpus" --bind-to none "${own[@]}")
peer=("$python" scripts/bench/dense_torch.py)
measure K25 "${own[@]}" || exit 1
if [ "$gpus" = 1 ]; then
  measure "PyTorch eager" "${peer[@]}" eager --steps "$steps"
  measure torch.compile "${peer[@]}" compile --steps "$steps"
fi
measure FSDP2 "$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" \
  scripts/bench/dense_torch.py fsdp2 --steps "$steps"
"$python" scripts/bench/dense_table.py "$out"
