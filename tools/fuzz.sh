#!/usr/bin/env bash
# Runs each fuzzer that `make fuzz` has built on its corpus for some seconds. New inputs go to build-fuzz/, never into the tree; a
# crash leaves its input there and ends the script.
# usage: fuzz.sh SECONDS [NAME_PATTERN]
set -euo pipefail

seconds=${1:?usage: fuzz.sh SECONDS [NAME_PATTERN]}
pattern=${2:-.}
out=build-fuzz

for source in tests/fuzz/fuzz_*.c; do
	name=$(basename "$source" .c)
	name=${name#fuzz_}
	[[ $name =~ $pattern ]] || continue
	mkdir -p "$out/corpus/$name"
	echo "fuzz: $name for $seconds s"
	"$out/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=3000 -print_final_stats=0 -verbosity=0 \
		-artifact_prefix="$out/" "$out/corpus/$name" $([ -d "tests/fuzz/corpus/$name" ] && echo "tests/fuzz/corpus/$name")
done
echo "fuzz: no crash"
