#!/usr/bin/env python3
"""Makes a Hugging Face folder of a public shape with seeded random weights: config.json, tokenizer.json, safetensors shards with their
index. What is measured on it (loading, start, speed) needs no download. Every tensor is a piece of one pool of random numbers, so that
the folder is written as fast as memory or a disk takes it; the same arguments give the same bytes.

usage: random_model.py SHAPE TYPE FOLDER [--seed N] [--jobs N] [--shard-bytes N] [--fp8-head]
SHAPE: llama-8b, llama-1b (its output head is its own), smollm2-135m, tiny
TYPE:  bf16, fp16, fp32; fp8-row and fp8-block: layers as 8-bit floats (e4m3) with a scale for each row, or for each block of 128 x 128
       (embedding, head and norms stay bf16, as in published folders; --fp8-head stores the head so too)

The tokenizer is a byte-level BPE that splits as Llama 3 does: 256 bytes, then pairs of bytes, then triples, each with its merge, up to the
vocabulary; so tokenizer.json has the size, and takes the time, of a real one."""
import argparse
import json
import math
import multiprocessing
import os
import struct
import sys

try:
    import numpy
except ImportError as missing:
    sys.exit(f"{os.path.basename(sys.argv[0])}: {missing}: numpy is needed")

SHAPES = {  # layers, hidden, ffn, heads, KV heads, head size, vocabulary, context, rope theta, tied head
    "tiny": (2, 64, 128, 2, 1, 64, 1024, 512, 10000.0, False),
    "smollm2-135m": (30, 576, 1536, 9, 3, 64, 49152, 8192, 100000.0, True),
    "llama-1b": (16, 2048, 8192, 32, 8, 64, 128256, 131072, 500000.0, False),
    "llama-8b": (32, 4096, 14336, 32, 8, 128, 128256, 131072, 500000.0, False),
}
DEVIATION = 0.02  # of weights, as models are initialised
POOL = 1 << 24  # random numbers
BLOCK = 128
PIECE = 1 << 20  # elements a tensor begins at multiples of, within the pool
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CODES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "fp8": "F8_E4M3"}
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}


def at_least(least):
    """A type of arguments: whole numbers from least on."""
    def parse(text):
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is below {least}")
        return number
    parse.__name__ = "int"  # as argparse calls it when the text is no number
    return parse


def as_bf16(values):
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def e4m3_table():
    """Values of the codes 0 to 126: sign bit clear, 127 is NaN."""
    return numpy.array([math.ldexp(c & 7, -9) if c < 8 else math.ldexp(8 + (c & 7), (c >> 3) - 10) for c in range(127)])


def as_e4m3(values):
    table = e4m3_table()
    codes = numpy.searchsorted((table[1:] + table[:-1]) / 2, numpy.abs(values)).astype(numpy.uint8)
    return codes | (numpy.signbit(values).astype(numpy.uint8) << 7)


def make_pool(code, seed):
    """Bytes of POOL random numbers; those of 8 bits have a deviation of 64, and their scales the rest."""
    values = numpy.random.Generator(numpy.random.PCG64(seed)).standard_normal(POOL, dtype=numpy.float32)
    if code == "F8_E4M3":
        return as_e4m3(values * 64).tobytes()
    values *= DEVIATION
    return (as_bf16(values) if code == "BF16" else values.astype(numpy.float16 if code == "F16" else numpy.float32)).tobytes()


def ones(count, code):
    one = {"BF16": as_bf16(numpy.ones(1)).tobytes(), "F16": numpy.ones(1, numpy.float16).tobytes()}
    return one.get(code, numpy.ones(1, numpy.float32).tobytes()) * count


def tensors_of(shape, kind, fp8_head):
    """(name, code, dimensions) of every tensor, in the order of the files."""
    layers, hidden, ffn, heads, kv_heads, head, vocab, _, _, tied = SHAPES[shape]
    plain = "BF16" if kind.startswith("fp8") else CODES[kind]
    out = [("model.embed_tokens.weight", plain, (vocab, hidden))]

    def matrix(name, rows, cols, is_8_bit):
        out.append((name + ".weight", "F8_E4M3" if is_8_bit else plain, (rows, cols)))
        if is_8_bit and kind == "fp8-row":
            out.append((name + ".weight_scale", "F32", (rows, 1)))
        elif is_8_bit:
            out.append((name + ".weight_scale_inv", "F32", (-(-rows // BLOCK), -(-cols // BLOCK))))

    for i in range(layers):
        layer = f"model.layers.{i}."
        out.append((layer + "input_layernorm.weight", plain, (hidden,)))
        for name, rows, cols in (("self_attn.q_proj", heads * head, hidden), ("self_attn.k_proj", kv_heads * head, hidden),
                                 ("self_attn.v_proj", kv_heads * head, hidden), ("self_attn.o_proj", hidden, heads * head),
                                 ("mlp.gate_proj", ffn, hidden), ("mlp.up_proj", ffn, hidden), ("mlp.down_proj", hidden, ffn)):
            matrix(layer + name, rows, cols, kind.startswith("fp8"))
        out.append((layer + "post_attention_layernorm.weight", plain, (hidden,)))
    out.append(("model.norm.weight", plain, (hidden,)))
    if not tied:
        matrix("lm_head", vocab, hidden, kind.startswith("fp8") and fp8_head)
    return out


def bytes_of(tensor):
    return BYTES[tensor[1]] * math.prod(tensor[2])


def into_shards(tensors, limit):
    shards, used = [[]], 0
    for number, tensor in enumerate(tensors):
        if shards[-1] and used + bytes_of(tensor) > limit:
            shards.append([])
            used = 0
        shards[-1].append((number, tensor))
        used += bytes_of(tensor)
    return shards


POOLS = {}  # of random bytes, by code: a worker inherits them


def take_pools(pools):
    POOLS.update(pools)


def write_data(out, number, tensor):
    name, code, dimensions = tensor
    if "scale" in name:
        out.write(numpy.full(math.prod(dimensions), DEVIATION / 64, numpy.float32).tobytes())
    elif len(dimensions) == 1:
        out.write(ones(dimensions[0], code))
    else:
        pool, left = memoryview(POOLS[code]), bytes_of(tensor)
        at = number * 7 % (POOL // PIECE) * PIECE * BYTES[code]
        while left > 0:
            left -= out.write(pool[at:at + left])
            at = 0


def write_shard(path, shard):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for _, tensor in shard:
        header[tensor[0]] = {"dtype": tensor[1], "shape": list(tensor[2]), "data_offsets": [at, at + bytes_of(tensor)]}
        at += bytes_of(tensor)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for number, tensor in shard:
            write_data(out, number, tensor)


def write_weights(folder, shape, kind, options):
    tensors = tensors_of(shape, kind, options.fp8_head)
    pools = {code: make_pool(code, options.seed) for code in {t[1] for t in tensors if len(t[2]) == 2 and "scale" not in t[0]}}
    shards = into_shards(tensors, options.shard_bytes)
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    jobs = [(os.path.join(folder, name), shard) for name, shard in zip(names, shards)]
    with multiprocessing.get_context("fork").Pool(min(options.jobs, len(jobs)), take_pools, (pools,)) as workers:
        workers.starmap(write_shard, jobs, 1)
    index = {tensor[0]: name for name, shard in zip(names, shards) for _, tensor in shard}
    total = sum(map(bytes_of, tensors))
    write_json(folder, "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    return total


def byte_texts():
    """The printable character that stands for each byte in byte-level vocabularies, as GPT-2 has it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


def write_tokenizer(folder, vocab):
    texts, merges, count = byte_texts(), [], vocab - len(SPECIAL)
    texts = texts[:count]
    for left in range(len(texts)):
        for right in range(256):
            if len(texts) < count:
                merges.append([texts[left], texts[right]])
                texts.append(texts[left] + texts[right])
    for pair in range(256, len(texts)):
        for right in range(256):
            if len(texts) < count:
                merges.append([texts[pair], texts[right]])
                texts.append(texts[pair] + texts[right])
    special = [{"id": len(texts) + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, s in enumerate(SPECIAL)]
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    write_json(folder, "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_only]}, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {text: i for i, text in enumerate(texts)}, "merges": merges}})


def write_config(folder, shape, kind):
    layers, hidden, ffn, heads, kv_heads, head, vocab, context, theta, tied = SHAPES[shape]
    written = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "vocab_size": vocab,
        "max_position_embeddings": context, "rope_theta": theta, "rms_norm_eps": 1e-5, "tie_word_embeddings": tied,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "bos_token_id": vocab - 3, "eos_token_id": vocab - 2,
        "torch_dtype": written.get(kind, "bfloat16")}
    if kind == "fp8-block":
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                         "weight_block_size": [BLOCK, BLOCK]}
    elif kind == "fp8-row":
        weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
        config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "float-quantized",
                                         "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    write_json(folder, "config.json", config)


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
        json.dump(value, out, ensure_ascii=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", choices=["bf16", "fp16", "fp32", "fp8-row", "fp8-block"])
    parser.add_argument("folder")
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--jobs", type=at_least(1), default=8)
    parser.add_argument("--shard-bytes", type=at_least(1), default=2 << 30)
    parser.add_argument("--fp8-head", action="store_true")
    options = parser.parse_args()
    try:
        os.makedirs(options.folder, exist_ok=True)
        write_config(options.folder, options.shape, options.type)
        write_tokenizer(options.folder, SHAPES[options.shape][6])
        total = write_weights(options.folder, options.shape, options.type, options)
    except OSError as failure:
        sys.exit(f"random_model.py: cannot write {failure.filename or options.folder}: {failure.strerror}")
    print(f"{options.folder}: {options.shape} {options.type}, {total / 1e9:.2f} GB of weights")


if __name__ == "__main__":
    main()
