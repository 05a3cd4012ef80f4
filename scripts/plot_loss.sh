#!/usr/bin/env bash
# Plots the loss of a run: RUN/loss.png, and in the terminal.
#
#   scripts/plot_loss.sh RUN
set -euo pipefail
if [ $# -ne 1 ] || [ ! -f "$1/metrics.jsonl" ]; then
  echo "usage: scripts/plot_loss.sh RUN, a run directory with metrics.jsonl" >&2
  exit 2
fi
here=$(dirname "${BASH_SOURCE[0]}")
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
python3 "$here/metrics_table.py" "$1/metrics.jsonl" loss >"$data/train"
python3 "$here/metrics_table.py" "$1/metrics.jsonl" val_loss >"$data/validation"

curves=()
[ ! -s "$data/train" ] || curves+=("'$data/train' with lines title 'training'")
[ ! -s "$data/validation" ] || curves+=("'$data/validation' with linespoints title 'validation'")
if [ ${#curves[@]} -eq 0 ]; then
  echo "$1/metrics.jsonl holds no loss yet" >&2
  exit 2
fi
plot="plot $(IFS=,; echo "${curves[*]}")"
common="set xlabel 'step'; set ylabel 'nats a token'; set key top right"
# With a one-point curve gnuplot warns that it had to widen the range.
gnuplot -e "set terminal dumb size 78, 22; $common; unset ylabel; $plot" 2>/dev/null
gnuplot -e "set terminal pngcairo size 900, 560; set output '$data/loss.png'; $common; set grid; $plot" 2>/dev/null
mv "$data/loss.png" "$1/loss.png"
echo "the same as a picture: $1/loss.png"
