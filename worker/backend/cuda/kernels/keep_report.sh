#!/bin/sh
# Runs nvcc and keeps what ptxas says of registers and spills beside the object: OBJECT.ptxas. The rest goes on.
for word in "$@"; do
  if [ "$previous" = "-o" ]; then object=$word; fi
  previous=$word
done
"$@" 2>"$object.err"
status=$?
grep -E "^ptxas info|^ +[0-9]+ bytes stack frame" "$object.err" >"$object.ptxas"
grep -vE "^ptxas info|^ +[0-9]+ bytes stack frame" "$object.err" >&2
rm -f "$object.err"
exit $status
