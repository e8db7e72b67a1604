#!/usr/bin/env python3
"""Decode speed of compiled transformers, to be measured beside the engine on one machine: greedy decoding of one sequence in bf16 with a
static cache, the step compiled by torch.compile (mode reduce-overhead, so CUDA graphs). Random weights of a public shape; needs torch and
transformers.

usage: bench_transformers.py [--shape NAME] [--tokens N] [--runs N] [--wait-for FILE] [--json FILE]
--wait-for: after compiling, wait until this file exists, so that the measurement falls in a quiet moment"""
import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch._dynamo.utils
import transformers

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from random_model import SHAPES  # noqa: E402

PROMPT = 16  # tokens in the cache before the first step that is timed
WARMUP = 24  # steps: compiling, recording the graph, and some more
WAIT_S = 600


def make_model(shape):
    layers, hidden, ffn, heads, kv_heads, head, vocab, _, theta, tied = SHAPES[shape]
    config = transformers.LlamaConfig(
        num_hidden_layers=layers, hidden_size=hidden, intermediate_size=ffn, num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=head, vocab_size=vocab, max_position_embeddings=2048, rope_theta=theta, rms_norm_eps=1e-5, tie_word_embeddings=tied)
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    return model.eval()


class Decoder:
    """One sequence, one token a step."""

    def __init__(self, model, positions):
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=positions)
        self.token = torch.zeros((1, 1), dtype=torch.long, device="cuda")
        self.position = torch.zeros((1,), dtype=torch.long, device="cuda")

        def step(token, position):
            logits = model(input_ids=token, cache_position=position, position_ids=position[None], past_key_values=self.cache,
                           use_cache=True).logits
            return logits[:, -1].argmax(-1, keepdim=True)

        step(self.token, self.position)  # once as it comes: the cache makes its tensors, at addresses that stay
        self.step = torch.compile(step, mode="reduce-overhead", fullgraph=True)

    def advance(self):
        torch.compiler.cudagraph_mark_step_begin()
        self.token = self.step(self.token, self.position).clone()
        self.position += 1
        return self.token

    def restart(self):
        self.cache.reset()
        self.position.zero_()
        for _ in range(PROMPT):
            self.advance()


def measure(decoder, tokens):
    """Tokens per second; every token is read by the host, as a server that streams must."""
    decoder.restart()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(tokens):
        decoder.advance().item()
    return tokens / (time.perf_counter() - begin)


def measure_unread(decoder, tokens):
    decoder.restart()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(tokens):
        decoder.advance()
    torch.cuda.synchronize()
    return tokens / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m", choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--wait-for")
    parser.add_argument("--json")
    options = parser.parse_args()
    begin = time.perf_counter()
    with torch.inference_mode():
        decoder = Decoder(make_model(options.shape), PROMPT + options.tokens)
        decoder.restart()
        for _ in range(WARMUP - PROMPT):
            decoder.advance()
        torch.cuda.synchronize()
        compiled_s = time.perf_counter() - begin
        print(f"compiled after {compiled_s:.1f} s", flush=True)
        while options.wait_for and not os.path.exists(options.wait_for) and time.perf_counter() - begin < WAIT_S:
            time.sleep(0.05)
        read = [measure(decoder, options.tokens) for _ in range(options.runs)]
        unread = [measure_unread(decoder, options.tokens) for _ in range(options.runs)]
    result = {
        "what": "transformers, StaticCache, torch.compile reduce-overhead, bf16, one sequence, random weights",
        "shape": options.shape, "tokens": options.tokens, "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "transformers": transformers.__version__, "compile_s": round(compiled_s, 1),
        "cuda_graphs_skipped": torch._dynamo.utils.counters["inductor"]["cudagraph_skips"],
        "tok_per_s": round(statistics.median(read), 1), "tok_per_s_unread": round(statistics.median(unread), 1),
        "runs": [round(x, 1) for x in read], "runs_unread": [round(x, 1) for x in unread]}
    print(f"{options.shape}: {result['tok_per_s']} tok/s, {result['tok_per_s_unread']} when the host does not read each token")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(result, out, indent=1)


if __name__ == "__main__":
    main()
