#!/usr/bin/env bash
# What recompute costs and saves on the dense model: nothing, the cheap tensors, the middle band, all layers; one table.
#
#   scripts/bench/recompute.sh [--gpus N] [--rows ROW,...] [--steps N] [--warmup N] [--config FILE] [--set KEY=VALUE]...
#                              [--k25 PROGRAM] [--python PROGRAM] [--out FILE]
#
# --rows       none, cheap (recompute.cheap: true), middle, all (recompute.layers). Default: all of them
# --steps      10 timed ones, after --warmup 6
# --set        after the script's own, as --set train.device=cpu for a machine without a GPU
# --out        keep what every program printed
#
# About 20 s a row on an H200. Wanted: at most 1.18 times as long with the middle band, 1.40 with all layers, and a planned
# peak within 5 % of the measured one. A row that fails is named and left out (exit 1). Exit code 2: something is missing.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
steps=10 warmup=6
read_options "gpus rows steps warmup config set k25 python out" "$@"
choose_rows none cheap middle all
open_out

for row in "${chosen[@]}"; do
  case $row in
    none) what= ;;
    cheap) what='cheap: true' ;;
    *) what="layers: $row" ;;
  esac
  measure_step "$row" "$gpus" --set "recompute={$what}"
done
"$python" scripts/bench/step_table.py recompute "$out" && exit $failed
