#!/bin/bash
# Usage: isa_symbols_test.sh NM LIST        LIST holds one object file a line
#        isa_symbols_test.sh NM --self-test PLANTED.o
#
# Objects built for AVX2 or AVX-512 may define for the linker only symbols that name their
# instruction set: namespace isa_vN, or Eigen_isa_vN. Any other definition (a weak std::max, say)
# could be the copy that the linker keeps for the whole program, which then dies on older CPUs.
set -u -o pipefail
nm=$1

# Prints the offending symbols of one object, fails when it cannot be read. Mangled names carry the
# length of each namespace.
offenders() {
  "$nm" --defined-only --extern-only --format=posix "$1" |
    awk '$2 ~ /^[A-Za-z]$/ && $1 !~ /6isa_v[34]|12Eigen_isa_v[34]/ &&
         $1 != "DW.ref.__gxx_personality_v0" {print $2, $1}' | c++filt
}

if [[ $2 == --self-test ]]; then
  found=$(offenders "$3") || exit 1
  if grep -q 'planted_weak' <<<"$found" && grep -q 'planted_strong' <<<"$found" &&
     ! grep -q 'planted_good' <<<"$found"; then
    exit 0
  fi
  echo "the planted symbols were not told apart; found: $found"
  exit 1
fi

checked=0
bad=0
while IFS= read -r object || [[ -n $object ]]; do
  [[ -z $object ]] && continue
  if [[ ! -f $object ]]; then
    echo "missing: $object (build everything first)"
    exit 1
  fi
  checked=$((checked + 1))
  found=$(offenders "$object") || exit 1
  if [[ -n $found ]]; then
    bad=$((bad + 1))
    echo "$object defines outside its instruction set's namespace:"
    sed 's/^/  /' <<<"$found"
  fi
done <"$2"
echo "$checked objects checked, $bad with stray symbols"
[[ $checked -gt 0 && $bad -eq 0 ]]
