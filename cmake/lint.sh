#!/usr/bin/env bash
# cmake/lint.sh BUILD_DIR [--each]: what `make lint` runs after a build.
#   1. clang-format: every C++ file as .clang-format has it
#   2. clang-tidy: .clang-tidy's list, on all C++ of the product (cmake/tidy.py; --each reads each file alone)
#   3. scripts and Python files parse
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: cmake/lint.sh BUILD_DIR [--each]}
[ -f "$build/compile_commands.json" ] || { echo "lint: $build has no compile_commands.json; run make build first" >&2; exit 2; }
files() { git -c safe.directory='*' ls-files -- "$@"; }
failed=()

echo "lint: clang-format"
files '*.h' '*.cc' | xargs -P2 -n40 clang-format --dry-run -Werror || failed+=(clang-format)

# It reads what was compiled, but without precompiled headers.
third_party/venv/bin/python cmake/tidy.py "$build" "${@:2}" || failed+=(clang-tidy)

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
