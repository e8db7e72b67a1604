#!/usr/bin/env bash
# Runs the tests, the measurements or the experiments of a GPU bundle on the machine it lies on, and writes what came of them as JSON.
# usage: run.sh test|bench|experiments [OUT_DIR]      (OUT_DIR: default the bundle's folder; exit code 0 when all went well)
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
what=${1:?usage: run.sh test|bench|experiments [OUT_DIR]}
out=$(mkdir -p "${2:-$here}" && cd "${2:-$here}" && pwd)
cd "$here" || exit 1
port=${PORT:-8139}

machine() {
	nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1 ||
		echo "no GPU"
}

# --- test -----------------------------------------------------------------------------------------------------------

run_tests() {
	local failed=0 rows="" program log begin seconds ok bad status
	log=$(mktemp)
	for program in ./test_*; do
		begin=$(date +%s.%N)
		timeout --kill-after=10 300 "$program" >"$log" 2>&1 </dev/null
		status=$?
		seconds=$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
		ok=$(grep -cE '^\[       OK \]' "$log")
		bad=$(grep -E '^\[  FAILED  \] [a-zA-Z0-9_]+$' "$log" | sort -u | wc -l)
		[ $status -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
		failed=$((failed + bad))
		printf '%-28s %3d passed %3d failed %6s s\n' "$program" "$ok" "$bad" "$seconds"
		[ "$bad" -ne 0 ] && grep -vE '^\[ (RUN|      OK) | info ' "$log" | head -n 40 | sed 's/^/    /'
		rows+="${rows:+,}{\"program\":\"${program#./}\",\"passed\":$ok,\"failed\":$bad,\"seconds\":$seconds}"
	done
	rm -f "$log"
	printf '{"machine":"%s","engine":"%s","tests":[%s]}\n' "$(machine)" "$(./verdict-engine --version)" "$rows" >"$out/gpu-test.json"
	[ "$failed" -eq 0 ]
}

# --- bench ----------------------------------------------------------------------------------------------------------

server=
start_server() { # MODEL and switches
	./verdict-engine serve --device cuda --port "$port" --model "$@" >"$out/serve.log" 2>&1 &
	server=$!
	local i
	for ((i = 0; i < 1200; i++)); do
		(exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET /health HTTP/1.0\r\n\r\n' >&3 && head -n 1 <&3 | grep -q ' 200 ') \
			2>/dev/null && return 0
		kill -0 "$server" 2>/dev/null || break
		sleep 0.1
	done
	tail -n 3 "$out/serve.log"
	return 1
}
stop_server() {
	[ -n "$server" ] && kill -TERM "$server" 2>/dev/null && wait "$server" 2>/dev/null
	server=
}
trap stop_server EXIT

rows=
bench_row() { # MODEL CONCURRENCY OUTPUT_TOKENS and more of verdict bench
	local model=$1 concurrency=$2 tokens=$3 json
	shift 3
	json=$(timeout 300 ./verdict bench "http://127.0.0.1:$port" --warmup 1 --runs 3 --prompt Hello --output-tokens "$tokens" \
		--concurrency "$concurrency" --json "$@") || return 1
	printf '%-22s %4s in flight  %s\n' "$model" "$concurrency" "$(grep -oE '"tok_per_s":[^,}]*' <<<"$json" | tail -n 1)"
	rows+="${rows:+,}{\"model\":\"$model\",\"concurrency\":$concurrency,\"bench\":$json}"
}

run_benches() {
	local status=0 shape
	for shape in 8b 1b 135m; do
		./bench_step $shape cuda 50 | tee "$out/bench-step-$shape.txt" || status=1
	done
	for shape in llama-8b-bf16 llama-1b-bf16 smollm2-135m-bf16; do
		start_server "shape:$shape" --max-num-seqs 128 --graph-max-bs 128 --max-model-len 2048 || { status=1; continue; }
		bench_row $shape 1 256 || status=1
		bench_row $shape 1 256 --temperature 0.8 || status=1
		for n in 8 32 128; do
			bench_row $shape $n 256 || status=1
		done
		stop_server
	done
	printf '{"machine":"%s","engine":"%s","rows":[%s]}\n' "$(machine)" "$(./verdict-engine --version)" "$rows" >"$out/gpu-bench.json"
	return $status
}

# --- experiments ----------------------------------------------------------------------------------------------------

run_experiments() {
	local status=0 file id=0
	for file in experiments/h200-*.json; do
		timeout 1500 ./verdict run "$file" --db "$out/gpu-results.db" ${QUICK:+--quick} || status=1
		id=$((id + 1))
		./verdict export $id --db "$out/gpu-results.db" >"$out/$(basename "$file")" || status=1
	done
	return $status
}

case $what in
test) run_tests ;;
bench) run_benches ;;
experiments) run_experiments ;;
*) echo "usage: run.sh test|bench|experiments [OUT_DIR]" >&2; exit 2 ;;
esac
