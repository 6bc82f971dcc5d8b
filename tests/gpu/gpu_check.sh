#!/usr/bin/env bash
# Checks and measures Stemma on a GPU machine that has LibTorch 2.11 and CUDA 13, from an unpacked gpu_bundle.tar.gz.
#
#   ./gpu_check.sh [SECONDS] [--only PART,PART] [--device cuda:0] [--report FILE] [--dry-run]
#   ./gpu_check.sh --run COMMAND...       with the libraries that the binaries in bin/ need
#
# SECONDS (default 1800) are for all parts together. Parts run in order of importance, each in a process of its own that is ended
# when it takes twice what is expected and a minute or, with others behind it, half of what is left, and report.json is written after
# every row. Processes see one GPU, cuda:0 or the one of --device; the test of exchanges between GPUs sees all where no --device is given.
# --dry-run says what would run. LibTorch is that of TORCH_ROOT, or of the torch that python (or $PYTHON) imports.
# Exit status: 0 all parts ran, 1 one could not, 2 this machine lacks something.
set -u

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=1800 only="" dry_run=false device=cuda report="$here/report.json" run=()

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
      sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
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
only=${only//[[:space:]]/}
IFS=, read -ra only_parts <<<"$only"
for part in "${only_parts[@]}"; do
  cut -d' ' -f1 "$here/parts.txt" | grep -qxF -e "$part" || fail "--only $part: no such part; there are: $(cut -d' ' -f1 "$here/parts.txt" | tr '\n' ' ')"
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
# The process sees the chosen GPU alone, as its first: binaries, python and nvidia-smi then mean the same one. K counts those of
# CUDA_VISIBLE_DEVICES, where it is set, as --device does of a worker.
gpu=0 chosen=$device all_gpus=${CUDA_VISIBLE_DEVICES:-}
case "$device" in
  cuda | cuda:*)
    gpu=${device#cuda} gpu=${gpu#:} gpu=${gpu:-0}
    case "$gpu" in *[!0-9]*) fail "--device $device: cuda:K, where K is a number" ;; esac
    if [ -z "${CUDA_VISIBLE_DEVICES:-}" ]; then
      export CUDA_DEVICE_ORDER=PCI_BUS_ID
    else
      IFS=, read -ra seen <<<"$CUDA_VISIBLE_DEVICES"
      [ "$gpu" -lt ${#seen[@]} ] || fail "--device $device: CUDA_VISIBLE_DEVICES shows ${#seen[@]}"
      gpu=${seen[gpu]}
    fi
    export CUDA_VISIBLE_DEVICES=$gpu
    device=cuda:0 ;;
esac
# What exchanges tensors between GPUs sees all that this script was shown, unless one of them was chosen.
for_nccl=(env)
if [ "$chosen" = cuda ]; then
  for_nccl=(env -u CUDA_VISIBLE_DEVICES)
  [ -z "$all_gpus" ] || for_nccl=(env "CUDA_VISIBLE_DEVICES=$all_gpus")
fi
export STEMMA_TEST_DEVICE=$device STEMMA_GPU_GOLDEN="$here/golden"
# For our own binaries: python has libraries of the same names, and of other versions.
native() {
  LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"
}

if [ ${#run[@]} -gt 0 ]; then
  native "${run[@]}"
  exit
fi

# What runs reads neither the list of parts nor the terminal.
exec </dev/null
bench=("$here/bin/gpu_bench" --report "$report")
if command -v flock >/dev/null; then
  { exec 9>"$report.run"; } 2>/dev/null || fail "$report cannot be written: name another with --report"
  flock -n 9 || fail "another run writes $report: wait until it ends, or name another with --report"
fi
hardware=$(nvidia-smi -i "$gpu" --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null | head -n 1)
native "${bench[@]}" --about "$here/about.json" --date "$(date -u +%F)" --hardware "$hardware" || fail "bin/gpu_bench does not run here, or cannot write $report; about.json says what it was built with"
logs="$report.logs"
mkdir -p "$logs" || fail "$logs cannot be made"
begin=$(date +%s) status=0

# Sets `limit` to the seconds that something may take: twice those that are expected and a minute, or what is left; half of that where
# so many others are behind it, so that what hangs in a short run leaves time for them.
limit_of() {
  local left=$((seconds - ($(date +%s) - begin)))
  limit=$((2 * $1 + 60))
  [ "$2" -eq 0 ] || left=$(((left + 1) / 2))
  [ "$limit" -le "$left" ] || limit=$left
}

# Ends what does not end by itself. The lock and the list of parts are not handed on, so that nothing that is left behind keeps it.
within() {
  local at_most=$1
  shift
  timeout -k 10 "$at_most" "$@" 9>&- 3<&-
}

# One binary may take half of the part's time, so that one that hangs leaves time for the others.
run_tests() {
  local test name result part_limit=$limit part_end=$(($(date +%s) + limit))
  native within "$limit" "${bench[@]}" --device "$device" --begin-part tests || { status=1; return; }
  for test in "$here"/bin/tests/*; do
    name=$(basename "$test")
    limit=$(((part_limit + 1) / 2))
    local of_part=$((part_end - $(date +%s)))
    [ "$limit" -le "$of_part" ] || limit=$of_part
    if [ "$limit" -le 0 ]; then
      echo "$name: out of time"
      status=1
      native "${bench[@]}" --add-test "$name" --out-of-time
      continue
    fi
    rm -f "$logs/$name.json"
    local test_begin
    test_begin=$(date +%s)
    local shown=(env)
    [ "$name" != nccl_transport_test ] || shown=("${for_nccl[@]}")
    native within "$limit" "${shown[@]}" "$test" "--gtest_output=json:$logs/$name.json" >"$logs/$name.log" 2>&1
    result=$?
    echo "$name: exit status $result"
    [ "$result" -eq 0 ] || status=1
    native "${bench[@]}" --add-test "$name" --result "$logs/$name.json" --status "$result" --took $(($(date +%s) - test_begin))
  done
  native "${bench[@]}" --end-part tests --status 0 --took $(($(date +%s) - part_begin))
}

run_transformers() {
  if [ -z "$python" ]; then
    echo "transformers: not measured, there is no python"
    return
  fi
  within "$limit" "$python" "$here/compare_transformers.py" --report "$report" --device "${device/cpu:*/cpu}" --seconds "$soft"
}

run_bench() {
  native within "$limit" "${bench[@]}" --device "$device" --only "$1" --seconds "$soft" 2>"$logs/$1.log" && return
  local result=$?
  echo "$1: $(tail -n 1 "$logs/$1.log")"
  return $result
}

behind=0
while read -r part _; do
  ! wanted "$part" || behind=$((behind + 1))
done <"$here/parts.txt"

while read -r part part_seconds _ <&3; do
  wanted "$part" || continue
  behind=$((behind - 1)) part_begin=$(date +%s)
  limit_of "$part_seconds" "$behind"
  if [ "$limit" -le 0 ]; then
    echo "$part: out of time"
    status=1
    continue
  fi
  # In the last tenth no row begins, so that the one that has begun can end.
  soft=$((limit - limit / 10))
  echo "== $part, at most $limit s"
  result=0
  case "$part" in
    tests) run_tests ;;
    transformers) run_transformers || result=$? ;;
    *) run_bench "$part" || result=$? ;;
  esac
  if [ "$result" -ne 0 ]; then
    status=1
    native "${bench[@]}" --end-part "$part" --status "$result" --took $(($(date +%s) - part_begin))
  fi
done 3<"$here/parts.txt"

echo "results: $report; logs: $logs"
[ -z "$python" ] || "$python" "$here/report_page.py" "$report"
exit $status
