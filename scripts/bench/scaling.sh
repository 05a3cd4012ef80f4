#!/usr/bin/env bash
# Weak scaling: the dense step on 1 and on N GPUs, as much work for each, with both ways to reduce; one table.
#
#   scripts/bench/scaling.sh [--gpus N] [--rows ROW,...] [--steps N] [--warmup N] [--config FILE] [--set KEY=VALUE]...
#                            [--k25 PROGRAM] [--python PROGRAM] [--out FILE]
#
# --gpus N     default 2
# --rows       ordered, library (reduce.mode), each on 1 GPU and on N. Default: both
# --steps      15 timed ones, after --warmup 8
# --set        after the script's own, as --set train.device=cpu for a machine without a GPU
# --out        keep what every program printed
#
# About 25 s a run on H200s, two runs a row. Wanted: at least 0.95 of the tokens/s of one GPU on each.
# A run that fails is named and left out (exit 1). Exit code 2: something is missing.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
gpus=2 steps=15 warmup=8
read_options "gpus rows steps warmup config set k25 python out" "$@"
[ "$gpus" -gt 1 ] || stop "--gpus 1 scales nothing; give 2 or more"
choose_rows ordered library
open_out

for mode in "${chosen[@]}"; do
  for ranks in 1 "$gpus"; do
    measure_step "$ranks $mode" "$ranks" --set reduce.mode="$mode"
  done
done
"$python" scripts/bench/step_table.py scaling "$out" && exit $failed
