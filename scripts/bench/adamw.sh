#!/usr/bin/env bash
# AdamW on the CPU: K25's and PyTorch's fused one on the same cores, in turn, in one run; one table by thread count.
#
#   scripts/bench/adamw.sh [--threads N,...] [--cpus LIST] [--rounds N] [--ffn N] [--k25 PROGRAM] [--python PROGRAM]
#                          [--out FILE]
#
# --threads    default 1, 2, 4 ... and as many as there are CPUs to run on
# --cpus       as taskset takes it, for both programs (0-15, say); default: all that this process may use
# --rounds     2: K25, PyTorch, K25, PyTorch
# --ffn        of k25 bench op: 3 x 2048 x 5632 (default) parameters for both
# --out        keep what every program printed
#
# GB/s count 28 bytes a parameter, and 30 with the bf16 copy, which PyTorch writes in a pass of its own.
# Wanted: at least as many as PyTorch's. Exit code 1: a program failed. Exit code 2: something is missing.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
threads='' cpus='' rounds=2 ffn=5632
read_options "threads cpus rounds ffn k25 python out" "$@"
require_torch
pin=()
[ -z "$cpus" ] || pin=(taskset -c "$cpus")
cores=$("${pin[@]}" nproc 2>/dev/null) || stop "--cpus $cpus: taskset does not take it"
if [ -z "$threads" ]; then
  for ((n = 1; n < cores; n *= 2)); do threads+=$n,; done
  threads+=$cores
fi
IFS=, read -ra counts <<<"$threads"
require_numbers "$rounds" "$ffn" "${counts[@]}"
open_out

shown='^[0-9 ].*'
for ((round = 0; round < rounds; ++round)); do
  measure 0 K25 "${pin[@]}" "$k25" bench op adamw --device cpu --threads "${counts[@]}" --hidden 2048 --ffn "$ffn"
  measure 0 PyTorch "${pin[@]}" "$python" scripts/bench/adamw_cpu.py --parameters $((3 * 2048 * ffn)) \
    --threads "${counts[@]}"
done
"$python" scripts/bench/adamw_table.py "$out" && exit $failed
