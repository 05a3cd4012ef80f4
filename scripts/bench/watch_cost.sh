#!/usr/bin/env bash
# What watching costs: steps of k25 train on the dense model with hardware metrics and stall records off, on, off, on, ...
#
#   scripts/bench/watch_cost.sh [--gpus N] [--pairs N] [--steps N] [--warmup N] [--config FILE] [--corpus FOLDER]
#                               [--set KEY=VALUE]... [--k25 PROGRAM] [--python PROGRAM] [--out FILE]
#
# --pairs      2: off, on, off, on
# --steps      40 timed ones, after --warmup 10
# --corpus     of k25 prepare; default: this repository's text, with a vocabulary of 1000
# --set        after the script's own, as --set train.device=cpu for a machine without a GPU
# --out        keep what every program printed
#
# Off: log.hardware: false, and log.stall_s so large that no step is a stall; on: both keys' defaults. Every rank's phases
# are measured, and travel with the step's statistics, either way. A step's time is that between two progress lines, so
# that writing metrics counts. The mean says what the sample of every second costs, the median what a usual step does; both
# stand beside how far two runs of one kind are apart, below which no difference means anything.
# About 40 s a run on an H200. No checkpoint is written. Wanted: at most 0.2 %.
# Exit code 1: a run failed. Exit code 2: something is missing.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
steps=40 warmup=10 pairs=2
read_options "gpus pairs steps warmup config corpus set k25 python out" "$@"
require_numbers "$pairs" "$warmup"
open_folder

# Each line of a program with the second at which it came.
stamped() {
  local line LC_ALL=C
  "$@" 2>&1 | while IFS= read -r line; do printf '@%s %s\n' "$EPOCHREALTIME" "$line"; done
  return "${PIPESTATUS[0]}"
}

shown='@.* step=[0-9]*0/[0-9]+ loss=[0-9.]+'
launcher "$gpus"
for ((run = 0; run < 2 * pairs; ++run)); do
  if ((run % 2)); then watch=(on true 0.5); else watch=(off false 1e6); fi
  train_steps $((warmup + steps)) --set run.dir="$folder/run-$run" --set log.format=text \
    --set log.hardware="${watch[1]}" --set log.stall_s="${watch[2]}"
  measure 143 "${watch[0]}" stamped "${training[@]}" || require_device "$gpus"
done
"$python" scripts/bench/train_table.py watch --steps $((warmup + steps)) --warmup "$warmup" "$out" && exit $failed
