#!/usr/bin/env bash
# Style and static analysis: clang-format in check mode, clang-tidy with .clang-tidy, cppcheck, shell syntax.
set -uo pipefail

status=0
mapfile -t sources < <(git ls-files 'base/*.c' 'kernels/*.c' 'engine/*.c' 'harness/*.c')

echo "lint: clang-format"
git ls-files '*.c' '*.h' | xargs clang-format --dry-run --Werror || { echo "lint: make format puts this right"; status=1; }

echo "lint: clang-tidy on ${#sources[@]} files"
# Each instruction-set file needs its own flags, as in the Makefile.
tidy() {
	local isa=() flags=(-std=c17 -D_GNU_SOURCE -I. -DVERDICT_VERSION='"lint"' -DVERDICT_BUILD_HASH='"lint"')
	case "$1" in
	*_avx2.c) isa=(-mavx2 -mfma -mf16c) ;;
	*_avx512.c) isa=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c) ;;
	esac
	clang-tidy --quiet "$1" -- "${flags[@]}" "${isa[@]}" 2>/dev/null || { echo "lint: clang-tidy refuses $1"; return 1; }
}
export -f tidy
printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c 'tidy "$1"' tidy {} || status=1

echo "lint: cppcheck"
cppcheck --quiet --error-exitcode=1 --std=c11 --language=c -j2 -I. -D__x86_64__ --enable=warning,portability --inline-suppr \
	--suppress=missingIncludeSystem --suppress=unknownMacro --suppress=syntaxError "${sources[@]}" || status=1

for script in tools/*.sh .ci/run; do
	bash -n "$script" || status=1
done
[ $status -eq 0 ] && echo "lint: clean"
exit $status
