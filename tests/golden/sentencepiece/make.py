#!/usr/bin/env python3
"""Remakes the files beside this one: run by hand, see README.md.

usage: make.py PYTHON      PYTHON: an interpreter that has llama_cpp
(needs sentencepiece, tokenizers, transformers, gguf and protobuf)"""
import json
import os
import random
import subprocess
import sys
import tempfile
import types

import gguf
import sentencepiece
from tokenizers import AddedToken, Tokenizer, models, processors
from transformers.convert_slow_tokenizer import LlamaConverter, import_protobuf
from transformers.tokenization_utils_tokenizers import generate_merges

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.dirname(HERE)
CONTROL = ["[INST]", "[/INST]"]
TAKEN = ["<tool>", "<a b>"]
THIN = 4  # every so many of the strings for forms that differ little

# Printed by the other interpreter: ids of texts, with and without special tokens, and what comes back for ids.
LLAMA = r"""
import json, sys
from llama_cpp import Llama
job = json.load(open(sys.argv[1]))
out = {}
for path in job["paths"]:
    model = Llama(path, vocab_only=True, verbose=False)
    rows = []
    for text in job["texts"]:
        data = text.encode()
        rows.append([model.tokenize(data, add_bos=False, special=special) if data else [] for special in (False, True)])
    out[path] = rows
json.dump(out, open(sys.argv[2], "w"))
"""


def golden_strings():
    with open(os.path.join(GOLDEN, "tokenizer", "strings.jsonl"), encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def train(folder, vocab_size=900, has_strings=True):
    corpus = os.path.join(folder, "corpus.txt")
    with open(corpus, "w", encoding="utf-8") as out:
        for name in ("prose.txt", "code.txt")[:2 if has_strings else 1]:
            out.write(open(os.path.join(GOLDEN, "text", name), encoding="utf-8").read())
        for text in golden_strings()[:60 if has_strings else 0]:
            out.write(text.replace("\0", "") + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=corpus, model_prefix=os.path.join(folder, "m"), vocab_size=vocab_size, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, character_coverage=0.99,
        allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2, control_symbols=CONTROL, user_defined_symbols=TAKEN)
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(open(os.path.join(folder, "m.model"), "rb").read())
    return proto, sentencepiece.SentencePieceProcessor(os.path.join(folder, "m.model"))


# --- tokenizer.json in its forms ---------------------------------------------------------------------------------------


def convert(proto, path, legacy=True, add_prefix_space=True, split=False, scheme=None):
    """What transformers' own converter makes of the model: legacy as Llama 2 and TinyLlama, else as Mistral 0.3."""
    converter = LlamaConverter.__new__(LlamaConverter)
    converter.original_tokenizer = types.SimpleNamespace(legacy=legacy, add_prefix_space=add_prefix_space, vocab_file=path)
    vocab = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    merges = generate_merges(vocab, {piece.piece: piece.score for piece in proto.pieces})
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(p.piece, normalized=False, special=True) for p in proto.pieces if p.type in (2, 3)])
    tokenizer.add_tokens([AddedToken(p.piece, normalized=False) for p in proto.pieces if p.type == 4])
    if converter.normalizer(proto):
        tokenizer.normalizer = converter.normalizer(proto)
    if converter.pre_tokenizer("\u2581", add_prefix_space):
        tokenizer.pre_tokenizer = converter.pre_tokenizer("\u2581", add_prefix_space)
    tokenizer.decoder = converter.decoder("\u2581", add_prefix_space)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    root = json.loads(tokenizer.to_str())
    if scheme:
        root["pre_tokenizer"].update(prepend_scheme=scheme, split=split)
    return root


def with_flags(root):
    """Added tokens of every kind."""
    root = json.loads(json.dumps(root))
    next_id = len(root["model"]["vocab"])
    for content, special, flags in (
            ("<mask>", True, ["lstrip"]), ("<sep>", False, ["rstrip"]), ("house", False, ["single_word"]),
            ("<both>", True, ["lstrip", "rstrip"]), ("<norm>", False, ["normalized"]), ("<S>", True, ["normalized"]),
            ("end of", False, ["normalized", "single_word"])):
        token = dict(id=next_id, content=content, special=special, single_word=False, lstrip=False, rstrip=False, normalized=False)
        token.update({flag: True for flag in flags})
        root["added_tokens"].append(token)
        next_id += 1
    return root


def variants(proto, path):
    legacy = convert(proto, path)
    composed = convert(proto, path)
    composed["normalizer"]["normalizers"].insert(0, {"type": "NFC"})
    return {
        "legacy": legacy,
        "first": convert(proto, path, legacy=False),
        "words": convert(proto, path, legacy=False, split=True, scheme="always"),
        "never": convert(proto, path, legacy=False, add_prefix_space=False),
        "bare": convert(proto, path, add_prefix_space=False),
        "composed": composed,
        "flags": with_flags(legacy),
        "first_flags": with_flags(convert(proto, path, legacy=False)),
    }


# --- GGUF -------------------------------------------------------------------------------------------------------------


def write_gguf(proto, path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    kinds = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6}
    # Users' tokens are written with their spaces, as ggml's converter does.
    writer.add_token_list([p.piece.replace("\u2581", " ") if p.type == 4 else p.piece for p in proto.pieces])
    writer.add_token_scores([p.score for p in proto.pieces])
    writer.add_token_types([kinds[p.type] for p in proto.pieces])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def ask_llama(python, folder, paths, texts):
    job, out, script = (os.path.join(folder, name) for name in ("job.json", "out.json", "llama.py"))
    json.dump(dict(paths=paths, texts=texts), open(job, "w"))
    open(script, "w").write(LLAMA)
    subprocess.run([python, script, job, out], check=True, stderr=subprocess.DEVNULL)
    return json.load(open(out))


# --- texts ------------------------------------------------------------------------------------------------------------


def special_texts():
    fixed = ["", " ", "  ", "a", " a", "  a", "Hello world", " Hello  world ", "<s>", "<s>a", "<s> a", "a<s>", "a <s> b", "<s></s>",
             "</s> the house<s>", "<unk>x", "[INST] Hello [/INST] the house </s><s>[INST]again[/INST]", "a<tool>b", " <tool> <tool>",
             "<tool>house", "<a b>x", "a <a b> b", "<s><a b><s>", "<a  b>", "<a\u2581b>", "\u2581", "\u2581a", "a\u2581 b", "<0x41>", "a<0x0A>b", "line\nbreak\n\n",
             "\t", "tab\there", "\0nul\0", "caf\u00e9 \u732b\U0001f431 \u0c95", "\U0001f600\U0001f1e9\U0001f1ea", "<s", "s>", "[INST", "INST]",
             "<mask>", "a <mask> b", "a  <mask><mask>  b", "x<sep>  y <sep>", "house", " house ", "houses", "the house.", "ahouse", "house_",
             "house house", "\u00e9house", "house\u0301", "<both>", "a <both> b", " \u3000<both>\u00a0 x", "<norm>", "a<norm>", "a <norm> b",
             "<s><norm>x", "<S>", "a<S>b", "a <S> b", "<S>x<S> <S>", "end of", "the end of it", "bend of", "end often",
             "<mask> house <sep> house", "house<s>house", "<s> house</s>", "<sep>  \tx", "a<sep> <mask>b", "\u24d0house", "house\u200dx"]
    pieces = ["<s>", "</s>", "<unk>", "[INST]", "[/INST]", "<tool>", "<a b>", " ", "  ", "house", "the house", "\u2581", "\n", "<mask>",
              "<sep>", "<both>", "<norm>", "<S>", "end of", "\u00e9", "\u732b", "x", "<", ">", "s"]
    rng = random.Random(11)
    return fixed + ["".join(rng.choice(pieces) for _ in range(rng.randint(2, 9))) for _ in range(60)]


def field_texts():
    rng = random.Random(12)
    pieces = ["hi", "h", "i", " ", "  ", "text", "te", "xt", "<|usr|>", "<s>", "\u00e9", "\n", "t"]
    fixed = ["hi", " hi", "  hi", "hi hi", "hi  text", "<|usr|>hi", "<|usr|> hi", "hi<|usr|>text", "<s>hi", "text   text", ""]
    return fixed + ["".join(rng.choice(pieces) for _ in range(rng.randint(1, 10))) for _ in range(60)]


# --- hashes -----------------------------------------------------------------------------------------------------------


def fnv(data):
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"


def hash_ids(ids):
    return fnv(" ".join(map(str, ids)).encode())


def main():
    folder = tempfile.mkdtemp()
    proto, processor = train(folder)
    strings, specials = golden_strings(), special_texts()
    roots = variants(proto, os.path.join(folder, "m.model"))
    write = lambda name, value: json.dump(value, open(os.path.join(HERE, name), "w", encoding="utf-8"), ensure_ascii=False,
                                          separators=(",", ":"))
    write("tokenizer.json", roots["legacy"])
    write("variants.json", {name: {key: root[key] for key in ("normalizer", "pre_tokenizer", "decoder", "added_tokens")}
                            for name, root in roots.items()})
    path = os.path.join(HERE, "vocabulary.gguf")
    write_gguf(proto, path)
    hashes, cases = {}, {}
    for name, root in roots.items():
        tokenizer = Tokenizer.from_str(json.dumps(root))
        rows = []
        # By their ids: tokenizers itself shows special tokens whose normalised text is not what they are called.
        hidden = {token["id"] for token in root["added_tokens"] if token["special"]}
        for text in specials:
            tokenizer.encode_special_tokens = False
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            tokenizer.encode_special_tokens = True
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            rows.append([ids, plain if plain != ids else 0, tokenizer.decode(ids, skip_special_tokens=False),
                         tokenizer.decode([i for i in ids if i not in hidden], skip_special_tokens=False)])
        if name != "composed":
            cases[name] = rows
        if "flags" in name:
            continue
        tokenizer.encode_special_tokens = True
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in strings[::1 if name == "legacy" else THIN]]
        hashes[name] = "".join(map(hash_ids, ids))
        if name in ("legacy", "never"):
            hashes[name + "_text"] = "".join(fnv(tokenizer.decode(i).encode()) for i in ids)
    hashes["sentencepiece"] = "".join(hash_ids(processor.encode(text)) for text in strings)
    fields = [os.path.join(GOLDEN, "field", name) for name in ("m22a_vocab_space_prefix.gguf", "m22b_vocab_no_prefix.gguf")]
    llama = ask_llama(sys.argv[1], folder, [path], specials + strings)[path]
    differ = [i for i, text in enumerate(strings) if llama[len(specials) + i][0] != processor.encode(text)]
    print("strings:", len(strings), "llama.cpp differs from sentencepiece in", len(differ), [strings[i][:40] for i in differ[:9]])
    cases["gguf"] = [[special, plain if plain != special else 0] for plain, special in llama[:len(specials)]]
    answers = ask_llama(sys.argv[1], folder, fields, field_texts())
    field = {os.path.basename(name): [[text, special, plain] for text, (plain, special) in zip(field_texts(), rows)]
             for name, rows in answers.items()}
    write("golden.json", dict(texts=specials, cases=cases, hashes=hashes, field=field))


if __name__ == "__main__":
    main()
