#!/usr/bin/env python3
"""Remakes logits.json and perplexity.json: run by hand, see README.md.
usage: make.py MODEL.gguf   (needs torch, transformers, gguf)"""
import json, os, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = os.path.dirname(os.path.realpath(__file__))
TEXTS = os.path.join(HERE, "..", "text")
STRIDE = 48  # every 48th logit is kept: 1024 of 49152
TOP = 64
CONTINUE = 48

folder, name = os.path.split(os.path.realpath(sys.argv[1]))
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
prose = open(os.path.join(TEXTS, "prose.txt"), encoding="utf-8").read()
code = open(os.path.join(TEXTS, "code.txt"), encoding="utf-8").read()

def encode(text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]

def chat(text):
    return encode("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                  f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")

# name, ids, whether a greedy continuation is kept
CASES = [
    ("one token", [504], True),
    ("capital", encode("The capital of France is"), True),
    ("story", encode("Once upon a time, in a small village by the sea, there lived"), True),
    ("code", encode(code)[:180], True),
    ("digits", encode("1, 1, 2, 3, 5, 8, 13, 21, 34, 55,"), True),
    ("french", encode("Le petit chat noir dort sur le canapé, et la pluie tombe"), True),
    ("chat", chat("Write one sentence about the moon."), True),
    ("emoji and cjk", encode("猫は好きですか? 🐱🚀 Ünïcödé — ½"), False),
    ("random ids", [(i * 7919) % 40000 + 100 for i in range(300)], False),
    ("long prose", encode(prose), False),
]

@torch.no_grad()
def logits_of(ids):
    return model(torch.tensor([ids])).logits[0]

@torch.no_grad()
def greedy(ids):
    out, margins = [], []
    cache, step = None, ids
    for _ in range(CONTINUE):
        result = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
        cache, last = result.past_key_values, result.logits[0, -1]
        best = torch.topk(last, 2)
        out.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 5))
        step = [out[-1]]
    return out, margins

cases = []
for name, ids, continued in CASES:
    last = logits_of(ids)[-1]
    top = torch.topk(last, TOP)
    case = {"name": name, "ids": ids, "norm": float(last.double().norm()),
            "top": [[int(i), round(float(v), 5)] for i, v in zip(top.indices, top.values)],
            "sample": [round(float(v), 5) for v in last[::STRIDE]]}
    if continued:
        case["greedy"], case["margins"] = greedy(ids)
    cases.append(case)
    print(name, len(ids), case["top"][0])
with open(os.path.join(HERE, "logits.json"), "w") as f:
    f.write('{"stride": %d, "vocab": %d, "cases": [\n' % (STRIDE, last.numel()) + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]}\n")

texts = []
for name in ("prose.txt", "code.txt"):
    ids = encode(open(os.path.join(TEXTS, name), encoding="utf-8").read())
    logp = torch.log_softmax(logits_of(ids).double(), -1)
    nll = -logp[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    # the same text in windows of 100 tokens without overlap
    windowed = []
    for begin in range(0, len(ids), 100):
        part = ids[begin:begin + 100]
        if len(part) > 1:
            lp = torch.log_softmax(logits_of(part).double(), -1)
            windowed.append(-lp[torch.arange(len(part) - 1), torch.tensor(part[1:])])
    windowed = torch.cat(windowed)
    texts.append({"name": name, "ids": ids, "nll": float(nll.sum()), "perplexity": float(nll.mean().exp()),
                  "windowed_100": {"predicted": windowed.numel(), "perplexity": float(windowed.mean().exp())}})
    print(name, len(ids), texts[-1]["perplexity"], texts[-1]["windowed_100"])
with open(os.path.join(HERE, "perplexity.json"), "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(t, separators=(",", ":")) for t in texts) + "\n]\n")
