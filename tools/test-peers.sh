#!/bin/bash
# Runs the experiments on llama.cpp's Python server and on two engines, shortened, and checks that they end in verdicts.
# usage: test-peers.sh BUILD PYTHON     PYTHON has llama-cpp-python[server]: pip install 'llama-cpp-python[server]'
set -euo pipefail
build=$1
python=$2
"$python" -c 'import llama_cpp.server.app' 2>/dev/null || {
	echo "test-peers: $python has no llama-cpp-python[server]; name one that has: make test-peers PEERS_PYTHON=…/bin/python" >&2
	exit 3
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

# run FILE ARM…: every arm must be launched three times and get a verdict other than failed.
run() {
	local file=$1
	shift
	if ! "$build/verdict" run "$file" --quick --json --db "$work/peers.db" --set 'workloads[0].requests=2' \
		--set 'workloads[0].sampling.max_tokens=12' >"$work/result.json"; then
		echo "FAIL $file: the run did not complete"
		failed=$((failed + 1))
		return
	fi
	for arm in "$@"; do
		if "$python" - "$work/result.json" "$arm" <<-'PYTHON'
			import json, sys
			rows = json.load(open(sys.argv[1]))["verdicts"]
			text = lambda value: value if isinstance(value, str) else json.dumps(value)
			row = [row for row in rows if f"{row['knob']}={text(row['value'])}" == sys.argv[2]]
			assert len(row) == 1, rows
			row = row[0]
			assert row["verdict"] in ("helped", "hurt", "neutral") and row["launches"] >= 3, row
			assert row["effect_pct"] is not None, row
			print(f"PASS {sys.argv[2]}: {row['verdict']} {row['effect_pct']:+.1f} % [{row['ci_low_pct']:+.1f}, {row['ci_high_pct']:+.1f}]")
		PYTHON
		then passed=$((passed + 1)); else
			echo "FAIL $arm"
			failed=$((failed + 1))
		fi
	done
}

# The files say python3; the one that was named is put first.
mkdir "$work/bin"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$python")" >"$work/bin/python3"
chmod +x "$work/bin/python3"
export PATH="$work/bin:$PATH"

run experiments/llamacpp-cpu.json threads=2 batch_size=32 flash_attn=true
run experiments/engines-cpu.json engine=verdict
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
