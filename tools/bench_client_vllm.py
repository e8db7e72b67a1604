"""What an event of a token stream costs our client, beside the client of `vllm bench serve`, in turns with each other.

usage: PYTHON tools/bench_client_vllm.py BENCH_CLIENT [ROUNDS]     PYTHON has vllm: make bench-client VLLM_PYTHON=…/bin/python

Both read the streams that BENCH_CLIENT serves: in bursts as fast as sockets take them, and paced (256 streams of 100 events a second).
vLLM's side is the request function that its benchmark runs, over a session made as the benchmark makes it; no progress bar, nothing but
the requests is timed. CPU is user and system time of the process that reads. Exits with 1 where ours misses the bars: 6 times the events
a second in bursts, 0.16 times the CPU of an event when paced. Prints one JSON object at the end, middle values of the rounds.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time

BURST_RATIO_MIN = 6.0
PACED_RATIO_MAX = 0.16


def load_vllm():
    """The request function alone is wanted; without a GPU the package chooses no platform by itself."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    import vllm
    from vllm.benchmarks.lib import endpoint_request_func

    return vllm.__version__, endpoint_request_func


def start_server(program, mode):
    server = subprocess.Popen([program, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return server, [int(word) for word in server.stdout.readline().split()]


async def read_streams(library, port, requests, concurrency, events):
    """As vllm/benchmarks/serve.py does it, with a limit on concurrency."""
    import aiohttp

    connector = aiohttp.TCPConnector(
        limit=concurrency, limit_per_host=concurrency, ttl_dns_cache=300, use_dns_cache=True, keepalive_timeout=60,
        enable_cleanup_closed=True, force_close=False, ssl=False)
    slots = asyncio.Semaphore(concurrency)
    question = library.RequestFuncInput(
        prompt="a", api_url=f"http://127.0.0.1:{port}/v1/completions", prompt_len=1, output_len=events, model="model")

    async def one(session):
        async with slots:
            return await library.async_request_openai_completions(request_func_input=question, session=session, pbar=None)

    async with aiohttp.ClientSession(connector=connector, trust_env=True) as session:
        cpu_s, begin_s = time.process_time(), time.perf_counter()
        outputs = await asyncio.gather(*[one(session) for _ in range(requests)])
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - begin_s
    # The first event of an answer is its TTFT, the others are gaps; the last carries no token but counts.
    arrived = sum(len(output.itl) + 1 for output in outputs)
    assert all(output.success for output in outputs), next(output.error for output in outputs if not output.success)
    assert requests * events <= arrived <= requests * (events + 1), (arrived, requests * events)
    return arrived / wall_s, cpu_s / arrived * 1e6


def measure_vllm(program, library, mode):
    server, load = start_server(program, mode)
    try:
        return asyncio.run(read_streams(library, *load))
    finally:
        server.stdin.close()
        server.wait(10)


def measure_ours(program):
    """Rows "bursts" and "paced" of the program's table: events, seconds, events a second, µs of CPU an event."""
    table = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line.split()[0] in ("bursts", "paced")}
    return {mode: (float(rows[mode][3]), float(rows[mode][4])) for mode in rows}


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    version, library = load_vllm()
    figures = {"ours": {"bursts": [], "paced": []}, "vllm": {"bursts": [], "paced": []}}
    for _ in range(rounds):
        ours = measure_ours(program)
        for mode in ("bursts", "paced"):
            figures["ours"][mode].append(ours[mode])
            figures["vllm"][mode].append(measure_vllm(program, library, mode))
    middle = lambda side, mode, field: statistics.median(figure[field] for figure in figures[side][mode])
    result = {"vllm_version": version, "rounds": rounds}
    for side in figures:
        result[side] = {
            "burst_events_per_s": round(middle(side, "bursts", 0)),
            "burst_cpu_us_per_event": round(middle(side, "bursts", 1), 3),
            "paced_cpu_us_per_event": round(middle(side, "paced", 1), 2),
        }
    result["burst_events_ratio"] = round(middle("ours", "bursts", 0) / middle("vllm", "bursts", 0), 2)
    result["paced_cpu_ratio"] = round(middle("ours", "paced", 1) / middle("vllm", "paced", 1), 3)
    for side, name in (("ours", "this client"), ("vllm", f"vLLM {version}")):
        row = result[side]
        print(f"{name:<14} {row['burst_events_per_s']:>10,} events/s in bursts   {row['paced_cpu_us_per_event']:6.2f} µs of CPU an event when paced")
    print(f"{'ratio':<14} {result['burst_events_ratio']:>10} (bar {BURST_RATIO_MIN:g})            {result['paced_cpu_ratio']:>6} (bar {PACED_RATIO_MAX})")
    print(json.dumps(result))
    return 0 if result["burst_events_ratio"] >= BURST_RATIO_MIN and result["paced_cpu_ratio"] <= PACED_RATIO_MAX else 1


sys.exit(main())
