#!/usr/bin/env bash
# Runs the tests, the measurements or the experiments of a GPU bundle on the machine it lies on, and writes what came of them as JSON.
# usage: run.sh WHAT [OUT_DIR]      (OUT_DIR: default the bundle's folder; exit code 0 when all went well, 3 without a GPU)
#   test         every GPU test, JOBS programs at a time (default 4), and how many were skipped for lack of the model: gpu-test.json
#   sanitize     the GPU tests (fewer cases of some) under compute-sanitizer, JOBS at a time (default 6), each for LIMIT_S seconds at most
#                (default 90), with each of TOOLS (default "memcheck racecheck initcheck synccheck"): gpu-sanitize.json
#   bench        every operation, steps, the GEMM library alone beside them, and speed through HTTP (folders of 9 GB are made for FP8_KINDS,
#                default "fp8-row fp8-block"): gpu-bench.json
#   prefill      of that, prompts of LENGTHS tokens alone (default: some of about 4096), of SHAPE (default llama-8b): gpu-prefill.json
#   fp8          requests of 8-bit floats, one by one, some beside the GPU's clocks and power, to find why their speed varies:
#                gpu-fp8.json and watch.csv (9 GB of memory, numpy; about two minutes)
#   start        an 8B folder in the page cache, from the start of the server to the first token: gpu-start.json (15 GB of memory, numpy)
#   peers        SmolLM2-135M's shape beside compiled transformers: gpu-peers.json (torch, transformers)
#   llama        8B in GGUF files through llama.cpp's llama-bench, named by LLAMA_BENCH, and through HTTP: gpu-llama.json (KINDS, default
#                "q8_0 q4_k_m bf16"; up to 17 GB of memory, numpy and gguf)
#   experiments  experiments/h200-*.json, or those that ONLY names, each as a record (QUICK=1: a first look)
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
what=${1:-}
out=$(mkdir -p "${2:-$here}" && cd "${2:-$here}" && pwd)
cd "$here" || exit 1
script=$here/${0##*/}
port=${PORT:-8139}
limit_s=${LIMIT_S:-90}
device=${DEVICE:-cuda} # cpu: a try of this script
tools=${TOOLS:-memcheck racecheck initcheck synccheck}

machine() {
	nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1 ||
		echo "no GPU"
}

# Ends here where the engine finds no GPU: experiments would measure the CPU.
need_gpu() {
	local said
	said=$(./verdict-engine once --device "$device" --model shape:tiny-bf16 --prompt x --max-tokens 1 2>&1 </dev/null)
	if grep -q '"device_unavailable"' <<<"$said"; then
		grep '^verdict-engine:' <<<"$said" >&2
		echo "run.sh $what: this machine has no GPU that the engine can use" >&2
		exit 3
	fi
}

# Ends a job. timeout has a process group of its own once it runs; before it knows its command's process, a signal to it alone would leave
# that behind.
end_job() { # PID
	kill -TERM -- "-$1" 2>/dev/null || kill -TERM "$1" 2>/dev/null
}
# Runs a command for so many seconds at most, and waits for it: what timeout runs gets no Ctrl-C of its own, and a signal that ends
# this script must end it too.
limited() { # SECONDS COMMAND...
	timeout --kill-after=30 "$@" </dev/null &
	wait $!
}
# The same for a job in the background, which is what stop_jobs ends. The signal may come before the command's process is known.
limited_job() { # SECONDS COMMAND...
	local job='' stopped='' status
	trap 'stopped=yes; [ -n "$job" ] && end_job "$job"' TERM
	timeout --kill-after=30 "$@" </dev/null &
	job=$!
	[ -n "$stopped" ] && end_job "$job"
	wait "$job"
	status=$?
	[ -z "$stopped" ] && return $status
	wait "$job" # which the signal interrupted
	exit 143
}
stop_jobs() {
	local job
	for job in $(jobs -pr); do
		end_job "$job"
	done
	wait
}

# What must not outlive this script: the logs of its tests, and models made here.
logs=
models=
forget_folders() {
	[ -n "$logs" ] && rm -rf "$logs"
	[ -n "$models" ] && rm -rf "$models"
	logs=
	models=
}
trap 'stop_jobs; forget_folders' EXIT

# --- test -----------------------------------------------------------------------------------------------------------

test_one() { # PROGRAM LOG
	local begin
	begin=$(date +%s.%N)
	limited_job 300 "$1" >"$2" 2>&1
	echo "status $? seconds $(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')" >>"$2"
}

report_tested() { # PROGRAM LOG: a line and a member of rows; fails when a test did
	local log=$2 ok bad skipped status seconds
	read -r _ status _ seconds < <(tail -n 1 "$log")
	ok=$(grep -cE '^\[       OK \]' "$log")
	bad=$(grep -E '^\[  FAILED  \] [a-zA-Z0-9_]+$' "$log" | sort -u | wc -l)
	skipped=$(grep -E '^\[  SKIPPED \] [a-zA-Z0-9_]+$' "$log" | sort -u | wc -l)
	[ $((ok + bad + skipped)) -eq 0 ] && echo "no test ran" >>"$log" && bad=1
	[ "$status" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
	printf '%-28s %3d passed %3d failed %3d skipped %6s s\n' "$1" "$ok" "$bad" "$skipped" "$seconds"
	[ "$bad" -ne 0 ] && grep -vE '^\[ (RUN|      OK) | info ' "$log" | head -n 40 | sed 's/^/    /'
	rows+="${rows:+,}{\"program\":\"${1#./}\",\"passed\":$ok,\"failed\":$bad,\"skipped\":$skipped,\"seconds\":$seconds}"
	[ "$bad" -eq 0 ]
}

run_tests() {
	local failed=0 program alone=./test_memory_cuda
	rows=
	logs=$(mktemp -d)
	for program in ./test_*; do
		[ "$program" = $alone ] && continue # plans with the memory of a whole GPU
		[ "$(jobs -pr | wc -l)" -ge "${JOBS:-4}" ] && wait -n
		test_one "$program" "$logs/${program#./}" &
	done
	wait
	if [ -e $alone ]; then
		test_one $alone "$logs/${alone#./}" &
		wait
	fi
	for program in ./test_*; do
		report_tested "$program" "$logs/${program#./}" || failed=1
	done
	forget_folders
	printf '{"machine":"%s","engine":"%s","at_a_time":%d,"tests":[%s]}\n' "$(machine)" "$(./verdict-engine --version)" "${JOBS:-4}" "$rows" \
		>"$out/gpu-test.json"
	return $failed
}

# --- sanitize -------------------------------------------------------------------------------------------------------

# Lines by which compute-sanitizer tells an error in a kernel.
findings='^========= (Invalid|Misaligned|Uninitialized|Error|Warning: Race|Race|Barrier|Divergent|Warpgroup|Program hit)'
# What it tells of the GEMM library's own kernels is not counted: racecheck finds hazards in its kernels for Hopper, nvjet_*. They are not left
# out by --kernel-name-exclude: with that, racecheck ended with an internal error of its own.
library='nvjet_|cublas'

sanitize_one() { # TOOL PROGRAM LOG
	limited_job "$limit_s" compute-sanitizer --tool "$1" "$2" few >"$3" 2>&1
	echo "status $?" >>"$3"
}

report_sanitized() { # TOOL PROGRAM LOG: a line and a member of rows; fails when the program did or the tool found something
	local name=${2#./} log=$3 tests errors state failed=0
	tests=$(grep -E '^\[       OK \]' "$log" | awk '{ printf "%s\"%s\"", n++ ? "," : "", $4 }')
	errors=$(grep -E "$findings" "$log" | grep -cvE "$library")
	case $(tail -n 1 "$log") in
	"status 0") state=finished ;;
	"status 124" | "status 137") state="cut off after $limit_s s" ;;
	*) state=failed; failed=1 ;;
	esac
	[ -z "$tests" ] && grep -q '^\[  SKIPPED \]' "$log" && state="skipped whole" && failed=0 && errors=0
	[ "$state" = finished ] && [ -z "$tests" ] && state="failed: no test ran" && failed=1
	grep -q 'Device not supported' "$log" && state="refused by this machine" && failed=1
	[ "$errors" -ne 0 ] && failed=1 && grep -vE "$library" "$log" | grep -A6 -m 3 -E "$findings"
	[ "$state" = failed ] && grep -vE '^\[ (RUN|      OK) | info ' "$log" | tail -n 12
	printf '%-9s %-20s %-28s %3d errors; ran whole: %s\n' "$1" "$name" "$state" "$errors" "${tests:-none}"
	rows+="${rows:+,}{\"tool\":\"$1\",\"program\":\"$name\",\"state\":\"$state\",\"errors\":$errors,\"tests\":[$tests]}"
	return $failed
}

run_sanitizer() {
	local failed=0 program tool
	rows=
	command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed"; return 1; }
	for tool in $tools; do
		for program in ./test_*; do
			[ "$(jobs -pr | wc -l)" -ge "${JOBS:-6}" ] && wait -n
			sanitize_one "$tool" "$program" "$out/$tool-${program#./}.log" &
		done
	done
	wait
	for tool in $tools; do
		for program in ./test_*; do
			report_sanitized "$tool" "$program" "$out/$tool-${program#./}.log" || failed=1
		done
	done
	printf '{"machine":"%s","kernel":"%s","engine":"%s","runs":[%s]}\n' "$(machine)" "$(uname -r)" "$(./verdict-engine --version)" \
		"$rows" >"$out/gpu-sanitize.json"
	return $failed
}

# --- bench ----------------------------------------------------------------------------------------------------------

server=
start_server() { # MODEL and switches
	./verdict-engine serve --device "$device" --port "$port" --model "$@" >"$out/serve.log" 2>&1 &
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
rows=
# Seconds that steps took, seconds between them, and steps, of the GPU's clock, since the server began.
device_seconds() {
	(exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 && timeout 10 awk '
		/^verdict_device_seconds_total / { busy = $2 } /^verdict_device_gap_seconds_total / { gap = $2 }
		/^verdict_device_steps_total / { steps = $2 } END { printf "%.9f %.9f %d", busy, gap, steps }' <&3)
}
bench_row() { # MODEL CONCURRENCY OUTPUT_TOKENS and more of verdict bench
	local model=$1 concurrency=$2 tokens=$3 json before between
	shift 3
	before=$(device_seconds)
	json=$(timeout 300 ./verdict bench "http://127.0.0.1:$port" --warmup 1 --runs 3 --prompt Hello --output-tokens "$tokens" \
		--concurrency "$concurrency" --json "$@") || return 1
	between=$(awk '{ all = $4 + $5 - $1 - $2; if (all > 0) printf "%.4f", ($5 - $2) / all; else printf "null" }' \
		<<<"$before $(device_seconds)")
	printf '%-22s %4s in flight  %s, between steps %s of the time\n' "$model" "$concurrency" \
		"$(grep -oE '"tok_per_s":[^,}]*' <<<"$json" | tail -n 1)" "$between"
	rows+="${rows:+,}{\"model\":\"$model\",\"concurrency\":$concurrency,\"between_steps_frac\":$between,\"bench\":$json}"
}
# Tokens of a prompt a second, from the request to its first token, and how much of that time was the GPU's. Each byte of a prompt is a
# token to models made up, so that numbers in a row make a prompt of any exact length. Nothing may come out of the prefix cache.
bench_prefill() { # MODEL TOKENS first|again RUNS
	local json rate before on_device
	before=$(device_seconds)
	json=$(timeout 300 ./verdict bench "http://127.0.0.1:$port" --warmup 0 --runs "$4" --prompt "$(seq -s ' ' 1 "$2" | head -c "$2")" \
		--output-tokens 1 --json) || return 1
	on_device=$(awk -v runs="$4" '{ printf "%.3f", 1000 * ($4 - $1) / runs }' <<<"$before $(device_seconds)")
	rate=$(awk -F'[:,]' '/"overall"/ { in_all = 1 } in_all && /"prompt_tokens"/ && !tokens { tokens = $2 }
		in_all && /"seconds"/ && !seconds { seconds = $2 } END { printf "%.1f", tokens / seconds }' <<<"$json")
	printf '%-22s %s tokens, %s: %s tokens/s to the first token, %s ms of a prompt on the GPU\n' "$1" "$2" "$3" "$rate" "$on_device"
	rows+="${rows:+,}{\"model\":\"$1\",\"prompt_tokens\":$2,\"sent\":\"$3\","
	rows+="\"prefill_tok_per_s\":$rate,\"device_ms\":$on_device,\"bench\":$json}"
	awk -F'[:,]' -v tokens="$(($2 * $4))" '/"cached_frac"/ && $2 != 0 { bad = 1 } /"overall"/ { in_all = 1 }
		in_all && /"prompt_tokens"/ && !seen { seen = 1; bad = bad || $2 != tokens } END { exit bad || !seen }' <<<"$json" ||
		{ echo "prompts of $2 tokens came out of the cache, or had another length"; return 1; }
}

# A folder for models made here: in memory where that has room.
make_models_folder() { # GIGABYTES
	local place=/dev/shm
	[ "$(df --output=avail -B 1G $place 2>/dev/null | tail -n 1)" -ge "$1" ] 2>/dev/null || place=${TMPDIR:-/tmp}
	models=$(mktemp -d "$place/verdict-models-XXXXXX")
}

# What was measured, on what, and further members (",\"name\":value").
write_rows() { # FILE MEMBERS
	printf '{"machine":"%s","engine":"%s","date":"%s","rows":[%s]%s}\n' "$(machine)" "$(./verdict-engine --version)" "$(date -u +%F)" \
		"$rows" "${2:-}" >"$1"
}

bench_shape() { # NAME MODEL GRAPH_MAX_BS CONCURRENCY...
	local name=$1 model=$2 cap=$3 status=0 n
	shift 3
	start_server "$model" --max-num-seqs "$cap" --graph-max-bs "$cap" --max-model-len 2048 || return 1
	for n in "$@"; do
		bench_row "$name" "$n" 256 || status=1
	done
	[ "$name" = llama-1b-bf16 ] && { bench_row "$name, temperature 0.8" 1 256 --temperature 0.8 || status=1; }
	stop_server
	return $status
}

# A chunk takes a whole prompt. Each length comes once and then again: the GEMM library is asked for an algorithm for each new number of
# rows. The first length takes what only a server's first prompts need. 4224 tokens are as many tiles of 128 rows as 4121, so alike
# times of the two say that what 4121 cost more than 4096 are tiles.
bench_long_prompts() {
	local status=0 name=${SHAPE:-llama-8b}-bf16 tokens
	start_server "shape:$name" --max-num-seqs 1 --graph-max-bs 1 --chunk-tokens 8192 --no-prefix-cache || return 1
	for tokens in ${LENGTHS:-3968 4096 4080 4094 4121 4224}; do
		bench_prefill "$name" "$tokens" first 1 || status=1
		bench_prefill "$name" "$tokens" again 5 || status=1
	done
	stop_server
	return $status
}

# JSON files, each as a member named like its file.
members() {
	local file
	for file in "$@"; do
		[ -s "$file" ] && printf ',"%s":%s' "$(basename "$file" .json)" "$(cat "$file")"
	done
}

run_benches() {
	local status=0 shape kind
	rm -f "$out"/bench-*.json
	./bench_gemms 8b --json "$out/bench-gemms-8b.json" || status=1
	./bench_ops --json "$out/bench-ops.json" || status=1
	for shape in 8b 1b 135m; do
		./bench_step $shape cuda 50 --json "$out/bench-step-$shape.json" || status=1
	done
	bench_shape llama-8b-bf16 shape:llama-8b-bf16 128 1 8 32 128 || status=1
	# Many rows are at the chip's power limit, which slows a long run: the library gets one as long as a server's.
	./bench_gemms 8b 300 --rows 128 --json "$out/bench-gemms-8b-128-rows.json" || status=1
	bench_long_prompts || status=1
	bench_shape llama-1b-bf16 shape:llama-1b-bf16 32 1 32 || status=1
	bench_shape smollm2-135m-bf16 shape:smollm2-135m-bf16 32 1 || status=1
	for kind in q8_0 q4_k_m fp8; do
		bench_shape llama-8b-$kind shape:llama-8b-$kind 32 1 8 || status=1
	done
	for kind in ${FP8_KINDS:-fp8-row fp8-block}; do
		make_models_folder 12
		if python3 tools/random_model.py llama-8b "$kind" "$models/fp8" --fp8-head; then
			bench_shape "llama-8b-$kind" "$models/fp8" 32 1 8 || status=1
		else
			echo "llama-8b-$kind: left out, its folder could not be made (Python with numpy, 9 GB)"
		fi
		forget_folders
	done
	write_rows "$out/gpu-bench.json" "$(members "$out"/bench-*.json)"
	return $status
}

run_prefill() {
	local status=0
	bench_long_prompts || status=1
	write_rows "$out/gpu-prefill.json"
	return $status
}

# --- fp8 ------------------------------------------------------------------------------------------------------------

# Clocks and power every 50 ms, each line with the time of day. Asking may itself disturb steps, so most series go without.
watch_gpu() {
	stdbuf -oL nvidia-smi --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw.instant,temperature.gpu,clocks_event_reasons.active \
		--format=csv,noheader,nounits -lms 50 >"$out/watch.csv" 2>/dev/null &
	watcher=$!
}
stop_watching() {
	[ -n "$watcher" ] && kill "$watcher" 2>/dev/null && wait "$watcher" 2>/dev/null
	watcher=
}
watcher=

# What was seen between two times of day: lowest and highest SM clock in MHz, highest power in W, every reason for a lower clock.
seen_between() { # FROM TO
	[ -s "$out/watch.csv" ] || return 0
	awk -F', ' -v from="$1" -v to="$2" '
		$1 >= from && $1 <= to && NF >= 6 {
			if (!n++ || $2 < low) low = $2
			if ($2 > high) high = $2
			if ($4 > watts) watts = $4
			if (!($6 in reasons)) { reasons[$6]; list = list (list ? " " : "") $6 }
		}
		END { if (n) printf ",\"sm_mhz\":[%d,%d],\"watts_max\":%d,\"reasons\":\"%s\"", low, high, watts, list }' "$out/watch.csv"
}

# The same request again and again. Runs of one process follow each other at once; runs on their own have pauses between them. When the
# two have the same pattern of speeds, what counts is the number of the request (its KV blocks); when not, time does (clocks, power).
vary() { # NAME RUNS
	local name=$1 runs=$2 json speeds before after began ended i
	json=$(timeout 120 ./verdict bench "http://127.0.0.1:$port" --warmup 0 --runs "$runs" --prompt Hello --output-tokens 256 --json) ||
		return 1
	speeds=$(awk -F'[:,]' '/"overall"/ { exit } /"tok_per_s"/ { printf "%s%.1f", n++ ? "," : "", $2 }' <<<"$json")
	printf '%-34s at once: %s tok/s\n' "$name" "$speeds"
	rows+="${rows:+,}{\"series\":\"$name\",\"at_once_tok_per_s\":[$speeds],\"alone\":["
	for ((i = 0; i < runs; i++)); do
		before=$(device_seconds)
		began=$(date +'%Y/%m/%d %H:%M:%S.%3N')
		json=$(timeout 120 ./verdict bench "http://127.0.0.1:$port" --warmup 0 --runs 1 --prompt Hello --output-tokens 256 --json) ||
			break
		ended=$(date +'%Y/%m/%d %H:%M:%S.%3N')
		after=$(device_seconds)
		[ -n "$watcher" ] && sleep 0.1 # what was seen last is written then
		after=$(awk '{ n = $6 - $3; printf "\"step_us\":%.1f,\"gap_us\":%.1f", n ? 1e6 * ($4 - $1) / n : 0, n ? 1e6 * ($5 - $2) / n : 0 }' \
			<<<"$before $after")
		after="{\"tok_per_s\":$(awk -F'[:,]' '/"tok_per_s"/ { printf "%.1f", $2; exit }' <<<"$json"),$after$(seen_between "$began" "$ended")"
		printf '%-34s alone %s\n' "$name" "$after}"
		rows+="$([ "$i" -gt 0 ] && echo ,)$after,\"from\":\"$began\",\"to\":\"$ended\"}"
	done
	rows+="]}"
	[ "$i" -eq "$runs" ]
}

vary_server() { # NAME MODEL and switches
	local status=0 name=$1 model=$2
	shift 2
	start_server "$model" --max-num-seqs 32 --graph-max-bs 32 --max-model-len 2048 "$@" || return 1
	vary "$name" "${RUNS:-6}" || status=1
	stop_server
	return $status
}

# Each series changes one thing of the folder's first: nothing (weights lie elsewhere), the same KV blocks for every request, less room
# for KV, the host waiting for every step, weights made up, another type. Long runs of steps alone say whether time alone makes them slow.
run_fp8() {
	local status=0 shape=${SHAPE:-llama-8b}
	rm -f "$out"/watch.csv "$out"/bench-*.json
	make_models_folder 12
	python3 tools/random_model.py "$shape" fp8-row "$models/fp8" --fp8-head || return 1
	vary_server "folder" "$models/fp8" || status=1
	vary_server "folder, started again" "$models/fp8" || status=1
	vary_server "folder, no prefix cache" "$models/fp8" --no-prefix-cache || status=1
	vary_server "folder, a fifth of the memory" "$models/fp8" --mem-fraction 0.2 || status=1
	vary_server "folder, no run-ahead" "$models/fp8" --run-ahead off || status=1
	vary_server "made up" "shape:$shape-fp8" || status=1
	if [ "$device" = cuda ]; then
		for steps in 50 2000; do
			./bench_step 8b-fp8 cuda $steps --rows 1 --json "$out/bench-fp8-$steps.json" || status=1
		done
	fi
	watch_gpu
	vary_server "folder, watched" "$models/fp8" || status=1
	vary_server "made up, watched" "shape:$shape-fp8" || status=1
	vary_server "q8_0 made up, watched" "shape:$shape-q8_0" || status=1
	stop_watching
	forget_folders
	write_rows "$out/gpu-fp8.json" "$(members "$out"/bench-fp8-*.json)"
	return $status
}

# --- start ----------------------------------------------------------------------------------------------------------

run_starts() {
	local status=0 switches="--max-num-seqs 32 --graph-max-bs 32 --max-model-len 2048"
	make_models_folder 18
	python3 tools/random_model.py llama-8b bf16 "$models/8b" || return 1
	echo "a folder just written, in $models:"
	# shellcheck disable=SC2086
	python3 tools/start_time.py --json "$out/start-folder.json" -- ./verdict-engine serve --model "$models/8b" $switches || status=1
	forget_folders
	echo "weights made up:"
	# shellcheck disable=SC2086
	python3 tools/start_time.py --json "$out/start-dummy.json" -- \
		./verdict-engine serve --model llama-8b-bf16 --load-format dummy $switches || status=1
	printf '{"machine":"%s","engine":"%s","date":"%s"%s}\n' "$(machine)" "$(./verdict-engine --version)" "$(date -u +%F)" \
		"$(members "$out"/start-*.json)" >"$out/gpu-start.json"
	return $status
}

# --- peers ----------------------------------------------------------------------------------------------------------

run_peers() {
	local status=0
	python3 tools/bench_transformers.py --json "$out/peer-transformers.json" ${WAIT_FOR:+--wait-for "$WAIT_FOR"} || status=1
	bench_shape smollm2-135m-bf16 shape:smollm2-135m-bf16 32 1 || status=1
	write_rows "$out/gpu-peers.json" "$(members "$out"/peer-*.json)"
	return $status
}

# --- llama ----------------------------------------------------------------------------------------------------------

# Both engines read the same file, one after the other.
run_llama() {
	local status=0 kind
	rm -f "$out"/llama-*.json
	command -v "${LLAMA_BENCH:-}" >/dev/null || { echo "LLAMA_BENCH names no program: build llama.cpp's llama-bench"; return 1; }
	for kind in ${KINDS:-q8_0 q4_k_m bf16}; do
		make_models_folder 18
		if python3 tools/random_gguf.py llama-8b "$kind" "$models/8b.gguf"; then
			if timeout 300 "$LLAMA_BENCH" -m "$models/8b.gguf" -ngl 99 -fa 1 -ub 2048 -b 4096 -p 512,4096 -n 128 -r 3 \
				-o json >"$out/llama-$kind.json" 2>"$out/llama-$kind.log"; then
				grep -E '"(n_prompt|n_gen|avg_ts)"' "$out/llama-$kind.json" | tr -d '\n '
				echo " llama.cpp, $kind"
			else
				rm -f "$out/llama-$kind.json" # what it began is no JSON
				echo "llama-8b-$kind: llama.cpp failed: $(tail -n 1 "$out/llama-$kind.log")"
				status=1
			fi
			bench_shape "llama-8b-$kind" "$models/8b.gguf" 32 1 || status=1
		else
			echo "llama-8b-$kind: left out, its file could not be made"
			status=1
		fi
		forget_folders
	done
	write_rows "$out/gpu-llama.json" "$(members "$out"/llama-*.json)"
	return $status
}

# --- experiments ----------------------------------------------------------------------------------------------------

run_experiments() {
	local status=0 file id=0 model
	rm -f "$out/gpu-results.db"*
	for file in ${ONLY:-experiments/h200-*.json}; do
		model=$(grep -oE '"models/[^"]+"' "$file" | tr -d '"')
		[ -n "$model" ] && [ ! -f "$model" ] && { echo "$file: left out, $model is not here"; continue; }
		limited 1500 ./verdict run "$file" --db "$out/gpu-results.db" ${QUICK:+--quick} || status=1
		id=$((id + 1))
		./verdict export $id --db "$out/gpu-results.db" >"$out/$(basename "$file")" || status=1
	done
	return $status
}

case $what in
test | sanitize | bench | prefill | fp8 | start | peers | llama | experiments) need_gpu ;;
esac
case $what in
test) run_tests ;;
sanitize) run_sanitizer ;;
bench) run_benches ;;
prefill) run_prefill ;;
fp8) run_fp8 ;;
start) run_starts ;;
peers) run_peers ;;
llama) run_llama ;;
experiments) run_experiments ;;
*) sed -n '3,18s/^# //p' "$script" >&2; exit 2 ;;
esac
