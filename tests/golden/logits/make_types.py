#!/usr/bin/env python3
"""Remakes types.json: run by hand, see README.md.
usage: make_types.py MODEL.gguf   (needs torch, transformers, gguf)"""
import hashlib, json, os, sys, tempfile
import gguf, numpy, torch
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.realpath(__file__))
STRIDE = 96  # every 96th logit is kept: 512 of 49152
TOP = 32
DIGEST_BYTES = 65536  # of each tensor
TYPES = (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.BF16,
         gguf.GGMLQuantizationType.F16)
PROMPTS = ("capital", "code", "chat", "french")  # ids from logits.json

def requantise(source, dtype, path):
    """The file at path: source with every matrix in dtype; returns the digest of the tensors."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    digest = hashlib.sha256()
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        writer.add_key_value(field.name, field.contents(), kind,
                             sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if len(tensor.shape) == 2:
            data, kind = gguf.quants.quantize(gguf.quants.dequantize(data, kind), dtype), dtype
        digest.update(numpy.ascontiguousarray(data).tobytes()[:DIGEST_BYTES])
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return digest.hexdigest()

@torch.no_grad()
def last_logits(model, ids):
    return model(torch.tensor([ids])).logits[0, -1]

def cases_of(model, what):
    cases = []
    for name in PROMPTS:
        last = last_logits(model, prompts[name]).float()
        top = torch.topk(last, TOP)
        cases.append({"name": name, "ids": prompts[name],
                      "top": [[int(i), round(float(v), 5)] for i, v in zip(top.indices, top.values)],
                      "sample": [round(float(v), 5) for v in last[::STRIDE]]})
        print(what, name, len(prompts[name]), cases[-1]["top"][0])
    return cases

prompts = {case["name"]: case["ids"] for case in json.load(open(os.path.join(HERE, "logits.json")))["cases"]}
types, brain = [], []
with tempfile.TemporaryDirectory() as folder:
    for dtype in TYPES:
        digest = requantise(sys.argv[1], dtype, os.path.join(folder, "model.gguf"))
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32).eval()
        types.append((dtype.name, digest, cases_of(model, dtype.name)))
        if dtype == gguf.GGMLQuantizationType.BF16:
            brain = cases_of(model.to(torch.bfloat16), "bf16 arithmetic")
with open(os.path.join(HERE, "types.json"), "w") as f:
    f.write('{"stride": %d, "vocab": %d, "types": [\n' % (STRIDE, model.config.vocab_size))
    f.write(",\n".join('{"type": "%s", "digest": "%s", "cases": [\n%s\n]}' %
                       (name, digest, ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
                       for name, digest, cases in types))
    f.write('\n],\n"bf16": {"type": "BF16", "cases": [\n%s\n]}}\n' % ",\n".join(json.dumps(c, separators=(",", ":")) for c in brain))
