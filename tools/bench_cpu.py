#!/usr/bin/env python3
"""Decode and prefill of verdict-engine beside llama.cpp on the same files and threads, alternating in one run.

Needs llama-cpp-python in the interpreter that runs this (it carries the quantiser for the extra files):
    python3 -m venv ~/peers && ~/peers/bin/pip install llama-cpp-python
    make bench-cpu PYTHON=~/peers/bin/python

Prints one line per file: tokens per second of both, their ratio, and the share of this machine's measured read rate
that our decode reaches. Writes the same as JSON to --out. Ratios are medians over alternating rounds."""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENGINE = os.path.join(ROOT, "build", "verdict-engine")
MODEL = os.path.join(ROOT, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
IDS = [(i * 7919) % 40000 + 100 for i in range(512)]
N_DECODE = 128

PEER = r"""
import sys, time, json
from llama_cpp import Llama
path, threads, n_decode, ids = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
llm = Llama(path, n_ctx=1024, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)
llm.eval(ids); llm.reset()
begin = time.perf_counter(); llm.eval(ids); prefill = len(ids) / (time.perf_counter() - begin)
llm.reset(); llm.eval(ids[:64])
begin = time.perf_counter()
for i in range(n_decode): llm.eval([ids[i]])
print(json.dumps([n_decode / (time.perf_counter() - begin), prefill]))
"""


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} exited {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.strip().splitlines()[-1]) if command[0] != ENGINE else json.loads(done.stdout)


def ours(path, threads, tp=1):
    def once(n_in, n_out):
        return run([ENGINE, "once", "--model", path, "--prompt-ids", ",".join(map(str, IDS[:n_in])), "--max-tokens", str(n_out),
                    "--ignore-eos", "--threads", str(threads), "--tp", str(tp), "--max-model-len", "1024", "--warmup", "1", "--json"])
    return [once(64, N_DECODE + 1)["decode_tok_per_s"], once(512, 1)["prefill_tok_per_s"]]


def peer(path, threads):
    return run([sys.executable, "-c", PEER, path, str(threads), str(N_DECODE), json.dumps(IDS)])


def requantise(kind):
    """Q8_0, Q4_0 and F16 files made from the demo's file by the peer's own quantiser."""
    import llama_cpp
    path = os.path.join(ROOT, "models", f"SmolLM2-135M-Instruct.{kind}.gguf")
    if os.path.exists(path):
        return path
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = {"F16": 1, "Q4_0": 2, "Q8_0": 7}[kind]
    params.allow_requantize = True
    code = llama_cpp.llama_model_quantize(MODEL.encode(), path.encode(), ctypes.byref(params))
    if code:
        sys.exit(f"the quantiser refused {kind}: {code}")
    return path


def read_rate_gb_s():
    """Best of several passes of the engine's own bench: see `verdict-engine bench --help`."""
    try:
        return run([ENGINE, "bench", "--model", MODEL, "--threads", "2", "--json"])["limits"]["read_gb_per_s"]
    except (KeyError, SystemExit):
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kinds", default="Q4_1,Q8_0,Q4_0,F16")
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "bench-cpu.json"))
    args = parser.parse_args()
    rate = read_rate_gb_s()
    report = {"time_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "threads": args.threads, "read_gb_per_s": rate, "files": []}
    print(f"{'file':6} {'decode':>8} {'peer':>8} {'ratio':>6} {'of read rate':>12} {'prefill':>9} {'peer':>8} {'ratio':>6}")
    for kind in args.kinds.split(","):
        path = MODEL if kind == "Q4_1" else requantise(kind)
        rounds = [(ours(path, args.threads), peer(path, args.threads)) for _ in range(args.rounds)]
        decode, prefill = (statistics.median(o[k] for o, _ in rounds) for k in (0, 1))
        peer_decode, peer_prefill = (statistics.median(p[k] for _, p in rounds) for k in (0, 1))
        ratio_decode, ratio_prefill = (statistics.median(o[k] / p[k] for o, p in rounds) for k in (0, 1))
        share = os.path.getsize(path) * decode / 1e9 / rate if rate else None
        report["files"].append({"kind": kind, "decode": decode, "peer_decode": peer_decode, "decode_ratio": ratio_decode, "prefill": prefill,
                                "peer_prefill": peer_prefill, "prefill_ratio": ratio_prefill, "share_of_read_rate": share, "rounds": rounds})
        print(f"{kind:6} {decode:8.1f} {peer_decode:8.1f} {ratio_decode:6.2f} {('%.2f' % share) if share else '-':>12} "
              f"{prefill:9.1f} {peer_prefill:8.1f} {ratio_prefill:6.2f}", flush=True)
    one, two = [], []
    for _ in range(args.rounds):
        one.append(ours(MODEL, 2)[0])
        two.append(ours(MODEL, 1, tp=2)[0])
    report["two_ranks_ratio"] = statistics.median(b / a for a, b in zip(one, two))
    print(f"two ranks of one thread against one rank of two threads, decode: {report['two_ranks_ratio']:.2f}")
    with open(args.out, "w") as out:
        json.dump(report, out, indent=1)
    print("written to", args.out)


if __name__ == "__main__":
    main()
