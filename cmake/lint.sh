#!/usr/bin/env bash
# cmake/lint.sh BUILD_DIR: what `make lint` runs after a build.
#   1. clang-format: every C++ file as .clang-format has it
#   2. clang-tidy: .clang-tidy's list, on all C++ of the product
#   3. scripts and Python files parse
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: cmake/lint.sh BUILD_DIR}
[ -f "$build/compile_commands.json" ] || { echo "lint: $build has no compile_commands.json; run make build first" >&2; exit 2; }
files() { git -c safe.directory='*' ls-files -- "$@"; }
failed=()

echo "lint: clang-format"
files '*.h' '*.cc' | xargs -P2 -n40 clang-format --dry-run -Werror || failed+=(clang-format)

# As CI compiles them, but each with the headers that it includes itself: precompiled ones (cmake/precompiled.cmake) are
# g++'s, and would hide an include that is missing.
mkdir -p "$build/lint"
sed 's/ -Winvalid-pch -include [^ ]*cmake_pch\.hxx//' "$build/compile_commands.json" >"$build/lint/compile_commands.json"

# All that was compiled: CUDA's side is not, where its toolkit is missing.
tidy_files() {
  files 'common/*.cc' 'server/*.cc' 'client/cli/*.cc' 'worker/*.cc' | while read -r file; do
    if grep -qF "/$file\"" "$build/lint/compile_commands.json"; then echo "$file"; fi
  done
}
echo "lint: clang-tidy, $(tidy_files | wc -l) files"
# --quiet leaves only a count of what was found in headers that are not ours. omp.h, which clang lacks, is the compiler's.
tidy_files | xargs -P2 -n1 third_party/venv/bin/clang-tidy -p "$build/lint" --quiet --extra-arg=-Wno-unknown-warning-option \
  --extra-arg=-Wno-deprecated-declarations --extra-arg=-idirafter"$(g++ -print-file-name=include)" \
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
