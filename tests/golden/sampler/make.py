"""Remakes cases.json: what transformers' logits warpers leave of a row, and with which probabilities.
usage: python make.py   (needs torch and transformers; run by hand)"""
import json, os, random

import torch
import transformers
from transformers.generation.logits_process import (
    MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

SETTINGS = [
    dict(temperature=1.0), dict(temperature=0.3), dict(temperature=2.5),
    dict(temperature=1.0, top_k=1), dict(temperature=1.0, top_k=5), dict(temperature=0.7, top_k=60),
    dict(temperature=1.0, top_p=0.9), dict(temperature=0.5, top_p=0.5), dict(temperature=1.0, top_p=0.01),
    dict(temperature=1.0, min_p=0.1), dict(temperature=2.0, min_p=0.3), dict(temperature=1.0, min_p=1.0),
    dict(temperature=0.8, top_k=20, top_p=0.8), dict(temperature=1.5, top_k=10, top_p=0.95, min_p=0.05),
    dict(temperature=1.2, top_p=0.7, min_p=0.2),
]

rng = random.Random(20261129)
cases = []
for number, settings in enumerate(SETTINGS):
    # Multiples of 1/64 without repeats: exact in fp32, and no ties whose order would be a matter of taste.
    row = [value / 64 for value in rng.sample(range(-400, 400), 64)]
    scores = torch.tensor([row], dtype=torch.float64)
    warpers = [TemperatureLogitsWarper(settings["temperature"])]
    if "top_k" in settings:
        warpers.append(TopKLogitsWarper(settings["top_k"]))
    if "top_p" in settings:
        warpers.append(TopPLogitsWarper(settings["top_p"]))
    if "min_p" in settings:
        warpers.append(MinPLogitsWarper(settings["min_p"]))
    for warper in warpers:
        scores = warper(None, scores)
    cases.append({
        "settings": settings, "logits": row,
        "probabilities": [round(p, 9) for p in torch.softmax(scores, -1)[0].tolist()],
        "raw_logprobs": [round(p, 6) for p in torch.log_softmax(torch.tensor(row, dtype=torch.float64), -1).tolist()],
    })
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases.json"), "w") as out:
    json.dump({"made_with": "transformers " + transformers.__version__, "cases": cases}, out, separators=(",", ":"))
    out.write("\n")
