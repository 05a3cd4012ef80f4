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
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warmup=10
read_options "gpus steps k25 python out" "$@"
require_torch
found=$("$python" -c 'import torch; print(torch.cuda.device_count())') || stop "$python: PyTorch does not start"
[ "$found" -ge "$gpus" ] || stop "PyTorch sees $found GPUs, asked for $gpus"
open_out

shown='^(step ranks=|\{"name").*'
peer=("$python" scripts/bench/dense_torch.py)
measure_step K25 "$gpus"
[ $failed = 0 ] || exit 1
if [ "$gpus" = 1 ]; then
  measure 0 "PyTorch eager" "${peer[@]}" eager --steps "$steps"
  measure 0 torch.compile "${peer[@]}" compile --steps "$steps"
fi
measure 0 FSDP2 "$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" \
  scripts/bench/dense_torch.py fsdp2 --steps "$steps"
"$python" scripts/bench/dense_table.py "$out"
