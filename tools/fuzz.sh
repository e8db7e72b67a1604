#!/usr/bin/env bash
# Builds each tests/fuzz/fuzz_NAME.c with clang's libFuzzer and sanitizers, and runs it on its corpus for some seconds.
# New inputs go to build-fuzz/, never into the tree; a crash leaves its input there and ends the script.
# usage: fuzz.sh SECONDS [NAME_PATTERN]
set -euo pipefail

seconds=${1:?usage: fuzz.sh SECONDS [NAME_PATTERN]}
pattern=${2:-.}
out=build-fuzz
mkdir -p "$out"
flags=(-std=c17 -D_GNU_SOURCE -I. -g -O1 -pthread -ffp-contract=off -fsanitize=fuzzer-no-link,address,undefined
	-fno-sanitize-recover=all -DVERDICT_VERSION='"fuzz"' -DVERDICT_BUILD_HASH='"fuzz"')
libs=(-lcmocka -ljansson -lmicrohttpd -lpcre2-8 -lutf8proc -lcurl -lsqlite3 -lm)

# Vector files: their instruction set, and no undefined-behaviour sanitizer, with which clang takes minutes for one of them.
isa_of() {
	case "$1" in
	*_avx2.c) echo "-mavx2 -mfma -mf16c -fno-sanitize=undefined" ;;
	*_avx512.c) echo "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c -fno-sanitize=undefined" ;;
	esac
}

objects=()
for source in base/*.c kernels/*.c kernels/cpu/*.c kernels/comm/*.c engine/*.c harness/*.c tests/support/*.c; do
	case "$source" in engine/main.c | harness/main.c | *_main.c) continue ;; esac
	object="$out/${source//\//_}.o"
	if [ "$source" -nt "$object" ]; then
		# shellcheck disable=SC2046
		clang "${flags[@]}" $(isa_of "$source") -c "$source" -o "$object"
	fi
	objects+=("$object")
done
rm -f "$out/libcode.a"
ar rcs "$out/libcode.a" "${objects[@]}"

for source in tests/fuzz/fuzz_*.c; do
	name=$(basename "$source" .c)
	name=${name#fuzz_}
	[[ $name =~ $pattern ]] || continue
	clang "${flags[@]}" -fsanitize=fuzzer "$source" -Wl,--start-group "$out/libcode.a" -Wl,--end-group "${libs[@]}" -o "$out/fuzz_$name"
	mkdir -p "$out/corpus/$name"
	echo "fuzz: $name for $seconds s"
	"$out/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=3000 -print_final_stats=0 -verbosity=0 \
		-artifact_prefix="$out/" "$out/corpus/$name" $([ -d "tests/fuzz/corpus/$name" ] && echo "tests/fuzz/corpus/$name")
done
echo "fuzz: no crash"
