#!/usr/bin/env python3
"""Writes dtype.bin: stored blocks of every tensor type beside what the `gguf` package (gguf-py) dequantises them to.

Run by hand where `gguf` and `numpy` are installed: python3 tests/golden/dtype/make_dtype.py
Record: u32 type id, u32 elements, u32 stored bytes, the stored bytes, the elements as little-endian fp32.
"""
import os
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

rng = np.random.default_rng(20240229)
ELEMENTS = {T.F32: 64, T.F16: 64, T.BF16: 64, T.Q4_0: 256, T.Q4_1: 256, T.Q8_0: 256, T.Q4_K: 1024, T.Q6_K: 1024}


def records(dtype, n):
    block, size = gguf.GGML_QUANT_SIZES[dtype]
    stored = n // block * size
    values = (rng.standard_normal(n) * np.repeat(np.exp(rng.standard_normal(n // 32)), 32)).astype(np.float32)
    yield np.zeros(stored, np.uint8)
    yield rng.integers(0, 256, stored, np.uint8)  # whatever the bytes are, infinities and NaN included
    if dtype in (T.Q4_K, T.Q6_K):  # the package cannot quantise to these: random quants under sane scales
        blocks = rng.integers(0, 256, (n // block, size), np.uint8)
        scales = rng.uniform(0.001, 0.1, (n // block, 2)).astype(np.float16).view(np.uint8)
        if dtype == T.Q4_K:
            blocks[:, 0:4] = scales
        else:
            blocks[:, 208:210] = scales[:, 0:2]
        yield blocks.reshape(-1)
    else:
        yield gguf.quants.quantize(values, dtype).reshape(-1).view(np.uint8)


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "dtype.bin"), "wb") as out, np.errstate(all="ignore"):
    for dtype, n in ELEMENTS.items():
        for data in records(dtype, n):
            values = gguf.quants.dequantize(data, dtype).reshape(-1).astype("<f4")
            assert values.size == n
            out.write(struct.pack("<III", int(dtype), n, data.size) + data.tobytes() + values.tobytes())
