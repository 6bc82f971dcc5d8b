#!/usr/bin/env bash
# cmake/lint.sh BUILD_DIR: what `make lint` runs after a build.
#   1. clang-format: every C++ file as .clang-format has it
#   2. clang-tidy: .clang-tidy's list, on what includes no LibTorch (whose headers would take minutes a file)
#   3. scripts and Python files parse
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: cmake/lint.sh BUILD_DIR}
[ -f "$build/compile_commands.json" ] || { echo "lint: $build has no compile_commands.json; run make build first" >&2; exit 2; }
files() { git -c safe.directory='*' ls-files -- "$@"; }
failed=()

echo "lint: clang-format"
files '*.h' '*.cc' | xargs -P2 -n40 clang-format --dry-run -Werror || failed+=(clang-format)

# Quoted: git matches in every folder below, the shell only beside.
tidy_files=('common/*.cc' 'server/*.cc' 'client/cli/*.cc' 'worker/schedule/*.cc' 'worker/engine/fence/*.cc'
  'worker/memory/residency/*.cc' worker/memory/{host_arena,slab_arena,thread_copy_engine}.cc
  worker/optim/{ranges,shards,slab_order}.cc worker/parallel/{collective,collective_stats,listen_socket}.cc)
echo "lint: clang-tidy, $(files "${tidy_files[@]}" | wc -l) files"
# --quiet leaves only a count of what was found in headers that are not ours.
files "${tidy_files[@]}" | xargs -P2 -n1 clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option \
  2> >(grep -vE '^[0-9]+ warnings? generated|^Suppressed' >&2) || failed+=(clang-tidy)

echo "lint: scripts"
while read -r script; do
  bash -n "$script" || failed+=("$script")
done < <(files '*.sh' .ci/run)
files '*.py' | python3 -c '
import ast, sys
for path in sys.stdin.read().split():
    ast.parse(open(path, encoding="utf-8").read(), path)
' || failed+=(python)

((${#failed[@]} == 0)) || { echo "lint: failed: ${failed[*]}" >&2; exit 1; }
echo "lint: nothing to report"
