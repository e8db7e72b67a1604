#!/usr/bin/env python3
"""Writes the experiment files of this folder: matrices that people run with other tools, as our files say them. Run by hand."""
import itertools, json, os

HERE = os.path.dirname(os.path.abspath(__file__))
LOADS = [12, 16, 24, 32, 64, 128, 200]


def write(name, document):
    document = {"name": name, **document}
    with open(os.path.join(HERE, name + ".json"), "w") as file:
        json.dump(document, file, indent=1)
        file.write("\n")


def load(name, input_len, output_len, concurrency, **more):
    return {"name": name, "endpoint": "/v1/completions", "concurrency": concurrency, "requests": 1024,
            "dataset": {"kind": "random_ids", "input_len": input_len, "output_len": output_len}, **more}


def vllm(**more):
    return {"adapter": "vllm", "command": ["vllm", "serve", "${MODEL}"], **more}


PAIRS = [(128, 128), (128, 2048), (2048, 128), (2048, 2048)]
only_base = {"applies_to": [{"engine": "8b"}]}
# x02: seven tests at seven concurrencies; two of them are other models under one of the loads.
write("x02", {
    "engines": {size: vllm(model=size, params={"async_scheduling": True, "enable_prefix_caching": False},
                           flags={"async_scheduling": "--async-scheduling", "enable_prefix_caching": "--enable-prefix-caching"})
                for size in ("8b", "70b", "4b")},
    "baseline": {"params": {"engine": "8b"}}, "matrix": {"factors": {"engine": ["8b", "70b", "4b"]}},
    "workloads": [load("random-128-128", 128, 128, LOADS)] +
                 [load(f"random-{i}-{o}", i, o, LOADS, **only_base) for i, o in PAIRS[1:]] +
                 [{"name": "sharegpt", "concurrency": LOADS, "requests": 200,
                   "dataset": {"kind": "text", "prompts": ["What is a prime number?"]}, **only_base}]})

# x03: 27 servers with variables of their own kind, at seven concurrencies.
servers = [{"tensor_parallel_size": tp, "quantization": q, "model_variant": m}
           for tp in (1, 2, 4) for q in ("none", "awq", "w8a8") for m in (0, 1, 2)]
write("x03", {
    "engine": vllm(model="m", env={"VLLM_CPU_KVCACHE_SPACE": "40"},
                   flags={"quantization": "--quantization", "model_variant": "--revision"}),
    "baseline": {"params": servers[0]}, "matrix": {"mode": "list", "arms": servers[1:]},
    "workloads": [load("w", 128, 128, LOADS)]})

# x05: the outer points; the searches inside are not for a fixed list.
write("x05", {
    "engine": vllm(model="m"),
    "matrix": {"mode": "grid", "factors": {"max_num_seqs": [128, 256], "max_num_batched_tokens": [1024, 2048, 4096]}},
    "workloads": [load("w", 128, 128, 8)]})

# x13: speculative settings; the graph size and the cap follow the batch.
points = [dict(max_running_requests=b, graph_max_bs=b, speculative_num_steps=s, speculative_eagle_topk=k,
               speculative_num_draft_tokens=d)
          for b, s, k, d in itertools.product([1, 2, 4, 8, 16], [0, 1, 3, 5, 7], [0, 1, 2, 4, 8], [0, 2, 4, 8, 16, 32])
          if s * k + 1 >= d and ((s, k, d) == (0, 0, 0) or (s > 0 and k > 0 and d > 0))]
write("x13", {
    "engine": {"adapter": "sglang", "command": ["python3", "-m", "sglang.launch_server", "--model-path", "m"]},
    "baseline": {"params": points[0]}, "matrix": {"mode": "list", "arms": points[1:]},
    "workloads": [{"name": "w", "concurrency": 1}]})

# x14: the ranges of llama-bench, and a pair that is one value.
write("x14", {
    "engine": {"adapter": "command", "command": ["x"], "flags": {k: "--" + k for k in "abcde"}},
    "baseline": {"params": {"a": 1, "b": 1, "c": 0, "d": 2, "e": [512, 64]}},
    "matrix": {"factors": {"a": {"from": 128, "to": 1024, "times": 2}, "b": {"from": 10, "to": 50, "step": 10},
                           "c": {"from": 1, "to": 8, "step": 1}, "d": {"from": 1, "to": 10, "step": 4},
                           "e": [[512, 128], [1024, 16]]}},
    "workloads": [{"name": "w"}]})

# x15: 24 servers, 11 loads; a list among the values is one value.
write("x15", {
    "engine": {"adapter": "command", "command": ["x"],
               "flags": {k: "--" + k for k in ("max_batch_size", "preferred_batch_size", "max_queue_delay", "instances")}},
    "matrix": {"mode": "grid", "factors": {"max_batch_size": [6, 8], "preferred_batch_size": [[1], [2], [3]],
                                           "max_queue_delay": [200, 300], "instances": [1, 2]}},
    "workloads": [load("w", 8, 8, [2 ** i for i in range(11)])]})

# x16: six set-ups in the order of the file.
names = [f"{engine}_{kind}" for engine in ("vllm", "sglang", "trtllm") for kind in ("agg", "disagg")]
write("x16", {
    "engines": {name: {"adapter": "command", "command": ["./" + name + ".sh", "${PORT}"]} for name in names},
    "matrix": {"factors": {"engine": names}}, "workloads": [load("w", 4000, 500, 8)]})

# x17: two lists taken together, and a load that follows the server's batch.
write("x17", {
    "engine": vllm(model="m"),
    "matrix": {"factors": {"max_num_seqs": [16, 32]}},
    "workloads": [{"name": f"zip-{c}", "concurrency": c, "requests": n}
                  for n, c in zip([10, 40, 100], [1, 4, 10])]})
write("x17b", {
    "engine": vllm(model="m"),
    "matrix": {"factors": {"max_num_seqs": [16, 32, 64, 128]}},
    "workloads": [load(f"b{b}-i{i}-o{o}", i, o, 2 * b, applies_to=[{"max_num_seqs": b}])
                  for b in [16, 32, 64, 128] for i in [512, 8192, 32768] for o in [32, 256]]})

# x18: a command word for word.
write("x18", {
    "engine": {"adapter": "sglang",
               "command": ["python3", "-m", "sglang.launch_server", "--cuda-graph-max-bs=8", "--tp", "8",
                           "--chunked-prefill-size=131072", "--num-continuous-decode-steps=4", "--kv-cache-dtype", "fp8_e4m3",
                           "--disable-radix-cache", "--mem-fraction-static=0.8", "--json-model-override-args",
                           "{\"a b\": \"c'd\"}", "--tokenizer", "", "--port", "${PORT}"]},
    "baseline": {"params": {"attention_backend": "aiter"}}, "matrix": {"factors": {"attention_backend": ["aiter", "triton"]}},
    "workloads": [{"name": "w"}]})

# What cannot be said, and is refused by name.
write("refused_x08", {
    "engine": vllm(model="m", roles={"prefill": {"workers": 1, "tp": 2}, "decode": {"workers": 5, "tp": 8}}),
    "matrix": {"factors": {"max_num_seqs": [1, 2]}}})
space = {"max_num_batched_tokens": {"from": 11500, "to": 96000, "step": 1024},
         "gpu_memory_utilization": {"from": 0.9, "to": 0.95, "step": 0.01}, "block_size": [8, 16, 32],
         "cuda_graph_sizes": {"from": 8, "to": 8192, "step": 128},
         "long_prefill_token_threshold": {"from": 0, "to": 11500, "step": 256}, "max_num_partial_prefills": [1, 2, 4, 8],
         "max_seq_len_to_capture": {"from": 4096, "to": 16384, "step": 1024}, "kv_cache_dtype": ["fp8"]}
flags = {k: "--" + k.replace("_", "-") for k in space}
write("refused_x11", {"engine": vllm(model="m", flags=flags), "matrix": {"mode": "grid", "factors": space}})
write("x11_values", {"engine": vllm(model="m", flags=flags),
                     "baseline": {"params": {k: None for k in space}}, "matrix": {"factors": space}, "workloads": [{"name": "w"}]})
write("refused_x12", {
    "engine": vllm(model="m", flags={k: "--" + k for k in "abcde"}),
    "matrix": {"mode": "grid", "factors": {k: list(range(n)) for k, n in zip("abcde", (6, 1, 7, 4, 64))}}})
