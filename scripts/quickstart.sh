#!/usr/bin/env bash
# From a fresh machine to a small trained model in one command: installs what is missing, builds k25,
# makes a corpus of the licence texts that every Debian and Ubuntu has, trains on it with two MPI ranks
# (about three minutes on two cores), and shows what was learned.
#
#   scripts/quickstart.sh [options of k25 train, such as --set train.steps=50]
#
# Run again, it reuses the build, the corpus and the run's checkpoints, and says so. The run is always
# runs/quickstart: run.dir is refused.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for argument in "$@"; do
  case $argument in
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    run.dir=* | run=* | --set=run.dir=* | --set=run=*)
      echo "$argument: the quickstart trains into runs/quickstart and shows what lies there; to train elsewhere," \
        "run k25 train itself: mpirun -np 2 build/cpu/trainer/cli/k25 train configs/quickstart.yaml --set run.dir=DIR" >&2
      exit 2
      ;;
  esac
done
documents=/usr/share/common-licenses
config=configs/quickstart.yaml
run=runs/quickstart

stage() { printf '\n== %s\n' "$*"; }

stage "set-up"
scripts/setup.sh
# shellcheck source=scripts/common.sh
source scripts/common.sh
grep -qw avx2 /proc/cpuinfo || echo "this CPU has no AVX2: training works, but takes several times longer"

stage "build (the first one takes some minutes)"
configure cpu
build cpu k25
k25=build/cpu/trainer/cli/k25

stage "corpus"
if [ -f corpus/manifest.json ]; then
  echo "reusing corpus/ (delete it to make it anew)"
elif [ -e corpus ]; then
  echo "corpus exists but holds no manifest.json: it is not a corpus; move it away" >&2
  exit 3
else
  $k25 prepare $documents --out corpus
fi

stage "training on 2 ranks: $config -> $run"
if [ -e $run/latest ]; then
  echo "reusing $run: going on from its last checkpoint (delete it to start anew)"
fi
begin=$SECONDS
mpirun -np 2 $k25 train $config "$@"
echo "trained for $((SECONDS - begin)) s"

stage "result"
report=$(mktemp)
trap 'rm -f "$report"' EXIT
$k25 eval $run >"$report"
python3 scripts/quickstart_report.py $run/metrics.jsonl "$report"
scripts/plot_loss.sh $run

stage "a text that the model writes"
$k25 sample $run --prompt "You may copy" --tokens 60

stage "to go on"
cat <<TEXT
train longer      mpirun -np 2 $k25 train $config --set train.steps=400
another corpus    $k25 prepare DIR --out mine, then data.train: mine/manifest.json in a copy of $config
what a run holds  $k25 inspect $run
the tests         scripts/test.sh
TEXT
if [ "$(id -u)" -eq 0 ] || [ "$cores" -lt 2 ]; then
  echo "(as root or with one core, mpirun also wants: --allow-run-as-root --oversubscribe)"
fi
