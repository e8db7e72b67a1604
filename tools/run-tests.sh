#!/usr/bin/env bash
# Runs every test program of a build tree, each with a time limit, and closes with "N passed, N failed".
# usage: run-tests.sh BUILD_DIR [NAME_PATTERN]
set -uo pipefail

build=${1:?usage: run-tests.sh BUILD_DIR [NAME_PATTERN]}
pattern=${2:-.}
limit_s=${TEST_TIMEOUT_S:-240}
passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log" "$log.bad"' EXIT

for program in "$build"/tests/*/test_*; do
	[ -x "$program" ] && [[ $program =~ $pattern ]] || continue
	begin=$(date +%s.%N)
	timeout --kill-after=10 "$limit_s" "$program" >"$log" 2>&1 </dev/null
	status=$?
	seconds=$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
	ok=$(grep -cE '^\[       OK \]' "$log")
	bad=$(grep -E '^\[  FAILED  \] [a-zA-Z0-9_]+$' "$log" | sort -u | wc -l)
	# A crash, a sanitizer report or a time-out is a failure even when every case before it passed.
	[ $status -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
	skipped=$(grep -E '^\[  SKIPPED \] [a-zA-Z0-9_]+$' "$log" | sort -u | wc -l)
	reason=$(sed -n 's/^skipped: //p' "$log" | head -n 1)
	note=""
	[ "$skipped" -ne 0 ] && note="  $skipped skipped${reason:+: $reason}"
	passed=$((passed + ok))
	failed=$((failed + bad))
	printf '%-44s %4d passed %3d failed %7s s%s\n' "${program#"$build"/tests/}" "$ok" "$bad" "$seconds" "$note"
	if [ "$bad" -ne 0 ]; then
		[ $status -eq 124 ] && echo "    time limit of $limit_s s passed"
		# The first complaint is the cause; a sanitizer's list of leaks after it may be long.
		grep -vE '^\[ (RUN|      OK) ' "$log" >"$log.bad"
		head -n 60 "$log.bad" | sed 's/^/    /'
		[ "$(wc -l <"$log.bad")" -gt 60 ] && echo "    …" && tail -n 30 "$log.bad" | sed 's/^/    /'
	fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
