#!/usr/bin/env bash
# The recipe's own job, configs/recipe-32l.yaml, with offload off and on: equal losses, memory and throughput; one table.
#
#   scripts/bench/recipe_32l.sh [--gpus N] [--rows ROW,...] [--steps N] [--warmup N] [--config FILE] [--corpus FOLDER]
#                               [--set KEY=VALUE]... [--k25 PROGRAM] [--python PROGRAM] [--out FILE]
#
# --gpus N     default 2
# --rows       off, on. Default: both. What --out kept of one row and then of the other is compared by
#              scripts/bench/train_table.py recipe --steps N OFF ON
# --steps      20, of 32 sequences of 4096 tokens; times are those after the first --warmup 3
# --corpus     of k25 prepare; default: this repository's text, with 1000 of the config's 163840 tokens
# --set        after the script's own, as --set train.device=cpu for a machine without a GPU
# --out        keep what every program printed
#
# micro_batch 2, reduce.slots 16 and zero.reshard_after forward, off and on alike: by k25 plan 97.7 GiB a GPU without
# offload and 51.2 with it on two H200s (-48 %), and a floor 3.5 % above that of 2 slots. Fewer slots keep all gradients of
# the model on each GPU (123.7 and 77.2 GiB); micro_batch 4 does not fit without offload. On the host 46.5 GiB a rank
# without and 116.3 with offload, page-locked; where that is too much, --set offload.resident=0.33 (88.9) is for the row on.
# No checkpoint is written. Some 3 to 4 minutes a row on two H200s.
# Beside it: -45 % memory and -18 % throughput, of the document that the recipe comes from.
# Exit code 1: the losses differ, or a row failed. Exit code 2: something is missing.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
gpus=2 config=configs/recipe-32l.yaml
read_options "gpus rows steps warmup config corpus set k25 python out" "$@"
require_numbers "$warmup"
[ "$warmup" -lt "$steps" ] || stop "--warmup $warmup leaves none of --steps $steps to time"
choose_rows off on
open_folder

shown='^\{"step":[0-9]+,"steps":[0-9]+,"loss":[0-9.]+'
for row in "${chosen[@]}"; do
  where=
  [ "$row" = off ] || where='optimizer: host, params: host'
  launcher "$gpus"
  train_steps "$steps" --set run.dir="$folder/$row" --set log.format=json \
    --set train.batch=32 --set train.micro_batch=2 --set train.accumulation=auto --set reduce.slots=16 \
    --set zero.reshard_after=forward --set "offload={$where}"
  measure 143 "$row" "${training[@]}" || require_device "$gpus"
done
"$python" scripts/bench/train_table.py recipe --steps "$steps" --warmup "$warmup" "$out" && exit $failed
