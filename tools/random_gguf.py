#!/usr/bin/env python3
"""Makes a GGUF file of a public shape with seeded random weights, so that engines which load such files are measured on one file without
a download. Every tensor is a piece of one pool of random blocks; the same arguments give the same weights. Needs gguf and numpy.

usage: random_gguf.py SHAPE TYPE FILE [--seed N]
SHAPE: llama-8b, llama-1b, smollm2-135m, tiny
TYPE:  bf16, q8_0, or q4_k_m: its finer type (Q6_K) for the output head, and in some layers for attn_v and ffn_down, as llama.cpp mixes it

Queries and keys of GGUF files are ordered in pairs for the rope; random ones need no reordering."""
import argparse
import math
import os
import sys

try:
    import gguf
    import numpy
    from gguf import GGMLQuantizationType as Type
except ImportError as missing:
    sys.exit(f"random_gguf.py: {missing}: gguf and numpy are needed")

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from random_model import DEVIATION, SHAPES, SPECIAL, as_bf16, at_least, byte_texts  # noqa: E402

POOL = 1 << 24  # random weights
TYPES = {"bf16": (Type.BF16, Type.BF16, gguf.LlamaFileType.MOSTLY_BF16), "q8_0": (Type.Q8_0, Type.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
         "q4_k_m": (Type.Q4_K, Type.Q6_K, gguf.LlamaFileType.MOSTLY_Q4_K_M)}


def halves(count, value):
    return numpy.full((count, 1), value, numpy.float16).view(numpy.uint8)


def make_pool(kind, random):
    """Bytes of POOL random weights with mean 0 and a standard deviation near DEVIATION, as blocks of the type."""
    if kind == Type.BF16:
        return as_bf16(random.standard_normal(POOL, numpy.float32) * DEVIATION).view(numpy.uint8)
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    count = POOL // weights

    def any_bytes(width):
        return random.integers(0, 256, (count, width), numpy.uint8)

    if kind == Type.Q8_0:  # scale, 32 numbers of 8 bits
        parts = [halves(count, DEVIATION / 74), any_bytes(32)]
    elif kind == Type.Q4_K:  # scale and scale of the minima, 8 of each in 6 bits, 256 numbers of 4 bits
        scale = DEVIATION / 258
        parts = [halves(count, scale), halves(count, 7.5 * scale), any_bytes(12), any_bytes(128)]
    else:  # Q6_K: 256 numbers of 4 and of 2 bits, 16 scales of 8 bits, their scale
        parts = [any_bytes(128), any_bytes(64), any_bytes(16), halves(count, DEVIATION / (74 * 18.5))]
    pool = numpy.concatenate(parts, axis=1)
    assert pool.shape[1] == size
    return pool.reshape(-1)


def is_fine(layer, layers):
    """The layers to which a mixed file gives the finer type: the first and last eighth, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors_of(shape, coarse, fine):
    """(name, type, dimensions) of every tensor."""
    layers, hidden, ffn, heads, kv_heads, head, vocab, _, _, tied = SHAPES[shape]
    out = [("token_embd", fine if tied else coarse, (vocab, hidden))]
    for i in range(layers):
        better = fine if is_fine(i, layers) else coarse
        out += [(f"blk.{i}.attn_norm", Type.F32, (hidden,)), (f"blk.{i}.attn_q", coarse, (heads * head, hidden)),
                (f"blk.{i}.attn_k", coarse, (kv_heads * head, hidden)), (f"blk.{i}.attn_v", better, (kv_heads * head, hidden)),
                (f"blk.{i}.attn_output", coarse, (hidden, heads * head)), (f"blk.{i}.ffn_norm", Type.F32, (hidden,)),
                (f"blk.{i}.ffn_gate", coarse, (ffn, hidden)), (f"blk.{i}.ffn_up", coarse, (ffn, hidden)),
                (f"blk.{i}.ffn_down", better, (hidden, ffn))]
    out.append(("output_norm", Type.F32, (hidden,)))
    return out if tied else out + [("output", fine, (vocab, hidden))]


def add_tokenizer(writer, vocab):
    """Byte-level BPE: 256 bytes, then pairs and triples, each with its merge."""
    texts, merges, count = byte_texts(), [], vocab - len(SPECIAL)
    texts = texts[:count]
    for left in range(1 << 20):
        if len(texts) >= count:
            break
        for right in range(256):
            if len(texts) < count:
                merges.append(texts[left] + " " + texts[right])
                texts.append(texts[left] + texts[right])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(texts + SPECIAL)
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * len(texts) + [int(gguf.TokenType.CONTROL)] * len(SPECIAL))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(vocab - 3)
    writer.add_eos_token_id(vocab - 2)


def add_sizes(writer, shape):
    layers, hidden, ffn, heads, kv_heads, head, vocab, context, theta, _ = SHAPES[shape]
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)


def data_of(number, kind, dimensions, pools):
    """Bytes of a tensor as rows of stored bytes: its piece of the pool, begun anew wherever the pool ends."""
    if len(dimensions) == 1:
        return numpy.ones(dimensions, numpy.float32)
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    length = math.prod(dimensions) // weights * size
    start = number * 7919 % (POOL // weights) * size
    return numpy.resize(numpy.roll(pools[kind], -start), length).reshape(dimensions[0], -1)


def write_file(path, shape, kind, seed):
    """Returns the bytes of its tensors."""
    coarse, fine, file_type = TYPES[kind]
    random = numpy.random.Generator(numpy.random.PCG64(seed))
    tensors = tensors_of(shape, coarse, fine)
    pools = {form: make_pool(form, random) for form in dict.fromkeys([coarse, fine])}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"{shape}-{kind}")
    writer.add_file_type(file_type)
    add_sizes(writer, shape)
    add_tokenizer(writer, SHAPES[shape][6])
    total = 0
    for name, stored_as, dimensions in tensors:
        weights, size = gguf.GGML_QUANT_SIZES[stored_as]
        stored = (*dimensions[:-1], dimensions[-1] // weights * size)
        is_blocks = stored_as != Type.F32
        n_bytes = math.prod(stored)
        writer.add_tensor_info(name + ".weight", stored if is_blocks else dimensions, numpy.dtype(numpy.uint8 if is_blocks else numpy.float32),
                               n_bytes, raw_dtype=stored_as if is_blocks else None)
        total += n_bytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, (_, stored_as, dimensions) in enumerate(tensors):
        writer.write_tensor_data(data_of(number, stored_as, dimensions, pools))
    writer.close()
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("file")
    parser.add_argument("--seed", type=at_least(0), default=1)
    options = parser.parse_args()
    fine = TYPES[options.type][1]
    widths = SHAPES[options.shape][1:3]
    if any(width % gguf.GGML_QUANT_SIZES[fine][0] for width in widths):
        parser.error(f"the widths of {options.shape} are no multiples of the {gguf.GGML_QUANT_SIZES[fine][0]} weights of a block")
    try:
        total = write_file(options.file, options.shape, options.type, options.seed)
    except OSError as failure:
        sys.exit(f"random_gguf.py: cannot write {failure.filename or options.file}: {failure.strerror}")
    print(f"{options.file}: {options.shape} {options.type}, {total / 1e9:.2f} GB of weights")


if __name__ == "__main__":
    main()
