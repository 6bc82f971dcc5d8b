#!/usr/bin/env bash
# Checks and measures Stemma on a GPU machine that has LibTorch 2.11 and CUDA 13, from an unpacked gpu_bundle.tar.gz.
#
#   ./gpu_check.sh [SECONDS] [--only PART,PART] [--device cuda:0] [--report FILE] [--dry-run]
#   ./gpu_check.sh --run COMMAND...       with the libraries that the binaries in bin/ need
#
# SECONDS (default 1800) are for all parts together. Parts run in order of importance, each in a process of its own, and
# report.json is written after every row. --dry-run says what would run. LibTorch is that of TORCH_ROOT, or of the torch
# that python (or $PYTHON) imports. Exit status: 0 all parts ran, 1 one could not, 2 this machine lacks something.
set -u

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=1800 only="" dry_run=false device=cuda:0 report="$here/report.json" run=()

fail() {
  echo "gpu_check.sh: $1" >&2
  exit 2
}

while [ $# -gt 0 ]; do
  case "$1" in
    --dry-run) dry_run=true ;;
    --run)
      shift
      [ $# -gt 0 ] || fail "--run needs a command"
      run=("$@")
      break ;;
    --only | --device | --report)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case "$1" in
        --only) only=$2 ;;
        --device) device=$2 ;;
        --report)
          folder=$(cd "$(dirname "$2")" 2>/dev/null && pwd) || fail "--report $2: there is no such folder"
          report=$folder/$(basename "$2") ;;
      esac
      shift ;;
    -h | --help)
      sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0 ;;
    '' | *[!0-9]*) fail "unknown argument: $1; --help says which there are" ;;
    *) seconds=$1 ;;
  esac
  shift
done
[ -x "$here/bin/gpu_bench" ] || fail "bin/gpu_bench is not beside this script: unpack gpu_bundle.tar.gz (make gpu-bundle) and run the one in it"

# A part's name stands first in its line of parts.txt, and the seconds that it takes second.
wanted() {
  [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]
}
for part in ${only//,/ }; do
  grep -q "^$part " "$here/parts.txt" || fail "--only $part: no such part; there are: $(cut -d' ' -f1 "$here/parts.txt" | tr '\n' ' ')"
done

python="" torch_root=${TORCH_ROOT:-}
find_torch() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python; do
    command -v "$candidate" >/dev/null || continue
    [ -n "$python" ] || python=$candidate
    [ -z "$torch_root" ] || return
    torch_root=$("$candidate" -c 'import importlib.util as u
s = u.find_spec("torch")
print(list(s.submodule_search_locations)[0] if s else "")' 2>/dev/null)
    [ -z "$torch_root" ] || python=$candidate
  done
}
find_torch
version=$(sed -n "s/^__version__ = ['\"]\(.*\)['\"]/\1/p" "$torch_root/version.py" 2>/dev/null)

if $dry_run; then
  echo "bundle: $(du -sh "$here" | cut -f1) unpacked, $(find "$here/bin/tests" -type f | wc -l) test binaries"
  echo "LibTorch: ${torch_root:-not found} ${version}"
  total=0
  while read -r part part_seconds what; do
    wanted "$part" || continue
    printf '  %-13s about %4d s  %s\n' "$part" "$part_seconds" "$what"
    total=$((total + part_seconds))
  done <"$here/parts.txt"
  echo "about $total s are expected on one H200; at most $seconds s are taken, in this order; results: $report"
  exit 0
fi

[ -n "$torch_root" ] || fail "no LibTorch: set TORCH_ROOT to an installed torch 2.11 (it holds lib/), or PYTHON to a Python that imports it"
case "$version" in
  2.11.*) ;;
  *) fail "the torch in $torch_root is ${version:-of no known version}; this bundle is built for 2.11" ;;
esac
[ -e "$torch_root/lib/libtorch_cuda.so" ] || fail "the torch in $torch_root is built without CUDA"
libraries="$here/lib:$torch_root/lib"
for folder in "$torch_root"/../nvidia/*/lib /usr/local/cuda/lib64; do
  [ ! -d "$folder" ] || libraries="$libraries:$folder"
done
export STEMMA_TEST_DEVICE=$device STEMMA_GPU_GOLDEN="$here/golden"
# For our own binaries: python has libraries of the same names, and of other versions.
native() {
  LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"
}

if [ ${#run[@]} -gt 0 ]; then
  native "${run[@]}"
  exit
fi

bench=("$here/bin/gpu_bench" --report "$report")
hardware=$(nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null | head -n 1)
native "${bench[@]}" --about "$here/about.json" --date "$(date -u +%F)" --hardware "$hardware" || fail "bin/gpu_bench does not run here; about.json says what it was built with"
logs="$report.logs"
mkdir -p "$logs" || fail "$logs cannot be made"
begin=$(date +%s) status=0
left() {
  echo $((seconds - ($(date +%s) - begin)))
}

# Test binaries have no rows to keep: each is given what is left.
run_tests() {
  local test name result
  for test in "$here"/bin/tests/*; do
    name=$(basename "$test")
    [ "$(left)" -gt 0 ] || { echo "$name: out of time"; status=1; continue; }
    rm -f "$logs/$name.json"
    native timeout "$(left)" "$test" "--gtest_output=json:$logs/$name.json" >"$logs/$name.log" 2>&1
    result=$?
    echo "$name: exit status $result"
    [ "$result" -eq 0 ] || status=1
    native "${bench[@]}" --add-test "$name" --result "$logs/$name.json" --status "$result"
  done
}

run_transformers() {
  if [ -z "$python" ]; then
    echo "transformers: not measured, there is no python"
    return
  fi
  "$python" "$here/compare_transformers.py" --report "$report" --device "${device/cpu:*/cpu}" --seconds "$(left)" || status=1
}

while read -r part _; do
  wanted "$part" || continue
  if [ "$(left)" -le 0 ]; then
    echo "$part: out of time"
    status=1
    continue
  fi
  echo "== $part, $(left) s left"
  case "$part" in
    tests) run_tests ;;
    transformers) run_transformers ;;
    *)
      # A row that has begun is let end, within reason.
      native timeout $(($(left) + 120)) "${bench[@]}" --device "$device" --only "$part" --seconds "$(left)" 2>"$logs/$part.log" || {
        echo "$part: $(tail -n 1 "$logs/$part.log")"
        status=1
      } ;;
  esac
done <"$here/parts.txt"

echo "results: $report; logs: $logs"
[ -z "$python" ] || "$python" "$here/report_page.py" "$report"
exit $status
