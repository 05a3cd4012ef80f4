#!/usr/bin/env bash
# What offload costs and saves: the dense model with sequences of 2048 tokens and 8 accumulations, one table.
#
#   scripts/bench/offload.sh [--gpus N] [--threads N] [--rows ROW,...] [--steps N] [--warmup N] [--config FILE]
#                            [--set KEY=VALUE]... [--k25 PROGRAM] [--python PROGRAM] [--out FILE]
#
# --threads N  offload.threads of the rows with a state on the host; default: as the config says (auto)
# --rows       none: everything on the GPU; optimizer: offload.optimizer: host; optimizer-resident: and a third of it
#              resident (0.33); both: optimizer and params; both-resident. Default: all
# --steps      5 timed ones, after --warmup 2
# --set        after the script's own, as --set train.device=cpu for a machine without a GPU
# --out        keep what every program printed
#
# About half a minute a row on an H200. Wanted: at most 12 % slower with states at least 45 % lower.
# A row that fails is named and left out (exit 1). Exit code 2: something is missing.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
steps=5 warmup=2 threads=
read_options "gpus threads rows steps warmup config set k25 python out" "$@"
[ -z "$threads" ] || require_numbers "$threads"
choose_rows none optimizer optimizer-resident both both-resident
open_out

for row in "${chosen[@]}"; do
  case $row in
    none) where= ;;
    optimizer*) where='optimizer: host' ;;
    both*) where='optimizer: host, params: host' ;;
  esac
  case $row in *-resident) where+=', resident: 0.33' ;; esac
  [ -z "$where" ] || where+=${threads:+, threads: $threads}
  measure_step "$row" "$gpus" --set data.sequence=2048 --set train.batch=auto \
    --set train.accumulation=8 --set "offload={$where}"
done
"$python" scripts/bench/step_table.py offload "$out" && exit $failed
