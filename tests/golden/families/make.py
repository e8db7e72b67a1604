#!/usr/bin/env python3
"""Remakes the folders beside this file: run by hand, see README.md.
usage: make.py [NAME...]   (needs torch, transformers, tokenizers, safetensors; for llama2 and mistral1 also sentencepiece,
protobuf and gguf; of all or those named)"""
import importlib.util, json, os, shutil, sys, tempfile
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

HERE = os.path.dirname(os.path.realpath(__file__))
PROSE = os.path.join(HERE, "..", "text", "prose.txt")
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB, CONTEXT = 32, 32, 2, 1, 64, 2, 320, 512
CONTINUE = 24

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEXTS = ["", "Hello world", " leading and  double   spaces ", "It's 12345 o'clock, WE'LL see!", "line\nbreak\r\n\n  tab\there",
         "Ünïcödé café naïve — ½", "Cafe\u0301 e\u0301 \u1e9b\u0323 A\u030a", "猫は好きですか? 🐱🚀 한국어", "print(f\"{x:>10}\")  # comment\n",
         "the letter about the garden and the house", "İstanbul ǅ ªº ೧೨ ௹", "<|end|> of text <tool> inside"]

def bytes_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)

def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_level(False)])

FAMILIES = {
    "llama3": dict(
        config=LlamaConfig, tied=False, seed=1, specials=["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|end|>"],
        bos=0, eos=[1, 2], pre=split(LLAMA3), ignore_merges=True, template_bos=True, shards=2,
        # as files before transformers 5 are written
        edit=lambda c: dict(c, rope_theta=500000.0, rope_scaling=dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64))),
    "mistral": dict(
        config=MistralConfig, tied=False, seed=2, specials=["<unk>", "<s>", "</s>", "<|end|>"], bos=1, eos=2, pre=split(TEKKEN),
        ignore_merges=False, template_bos=True, edit=lambda c: dict(c, sliding_window=None, rope_theta=1000000.0)),
    "qwen2": dict(
        config=Qwen2Config, tied=True, seed=3, specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>"], user=["<tool>"],
        bos=None, eos=[2, 0], pre=split(QWEN2), nfc=True, ignore_merges=False, string_merges=True,
        edit=lambda c: dict(c, use_sliding_window=False, sliding_window=128, max_window_layers=2, rope_theta=1000000.0)),
    "qwen3": dict(
        config=Qwen3Config, tied=True, seed=4, specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>"], user=["<tool>"],
        bos=None, eos=[2, 0], pre=split(QWEN2), nfc=True, ignore_merges=False,
        # as transformers 5 writes files
        edit=lambda c: dict(c, rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "smollm2": dict(
        config=LlamaConfig, tied=True, seed=5, specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>"], bos=1, eos=2,
        pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_level(True)]), ignore_merges=False,
        string_merges=True, edit=lambda c: dict(c, rope_theta=100000.0, rope_scaling=dict(type="linear", factor=2.0),
                                               rope_interleaved=False, is_llama_config=True)),
    # Vocabularies of SentencePiece. Every head has keys and values of its own; spaces are put in by a normaliser.
    "llama2": dict(
        config=LlamaConfig, tied=False, seed=31, sentencepiece=dict(legacy=True), bos=1, eos=2, kv_heads=2, head_dim=16, vocab=400,
        edit=lambda c: {k: v for k, v in dict(c, rope_theta=10000.0, rope_scaling=None).items() if k != "head_dim"}),
    # A window shorter than the context; spaces are put in by a pre-tokenizer.
    "mistral1": dict(
        config=MistralConfig, tied=False, seed=22, sentencepiece=dict(legacy=False), bos=1, eos=2, vocab=400,
        edit=lambda c: dict(c, sliding_window=256, rope_theta=10000.0)),
}

def sentencepiece_forms():
    """The script that makes the golden vocabularies, for what it knows of SentencePiece."""
    path = os.path.join(HERE, "..", "sentencepiece", "make.py")
    spec = importlib.util.spec_from_file_location("sentencepiece_forms", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def make_sentencepiece(folder, f):
    forms = sentencepiece_forms()
    with tempfile.TemporaryDirectory() as work:
        proto, _ = forms.train(work, vocab_size=f["vocab"], has_strings=False)
        root = forms.convert(proto, os.path.join(work, "m.model"), legacy=f["sentencepiece"]["legacy"])
    json.dump(root, open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8"), ensure_ascii=False, indent=1)
    forms.write_gguf(proto, os.path.join(folder, "vocabulary.gguf"))
    json.dump(dict(tokenizer_class="LlamaTokenizer", legacy=f["sentencepiece"]["legacy"], add_bos_token=True, add_eos_token=False,
                   bos_token="<s>", eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=False),
              open(os.path.join(folder, "tokenizer_config.json"), "w"))
    return Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))

def make_tokenizer(folder, f):
    if "sentencepiece" in f:
        return make_sentencepiece(folder, f)
    tokenizer = Tokenizer(models.BPE(ignore_merges=f["ignore_merges"]))
    tokenizer.pre_tokenizer = f["pre"]
    tokenizer.decoder = decoders.ByteLevel()
    if f.get("nfc"):
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=310, special_tokens=f["specials"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train([PROSE], trainer)
    for text in f.get("user", []):
        tokenizer.add_tokens([AddedToken(text, normalized=False)])
    if f.get("template_bos"):
        bos = f["specials"][f["bos"]]
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, f["bos"])])])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    if f.get("string_merges"):
        path = os.path.join(folder, "tokenizer.json")
        root = json.load(open(path, encoding="utf-8"))
        root["model"]["merges"] = [" ".join(pair) for pair in root["model"]["merges"]]
        json.dump(root, open(path, "w", encoding="utf-8"), ensure_ascii=False)
    json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=None if f["bos"] is None else f["specials"][f["bos"]],
                   eos_token=dict(content=f["specials"][f["eos"] if isinstance(f["eos"], int) else f["eos"][0]])),
              open(os.path.join(folder, "tokenizer_config.json"), "w"))
    json.dump(dict(eos_token_id=f["eos"]), open(os.path.join(folder, "generation_config.json"), "w"))
    return Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))

def random_weights(model, seed, quiet=()):
    """quiet: tokens that are never the likeliest."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            noise = 1 + 0.2 * noise
        elif name.endswith("bias"):
            noise = 0.3 * noise
        elif "embed" in name:
            noise = 0.3 * noise
        elif "lm_head" in name:
            noise = 0.5 * noise
        else:
            noise = 1.3 * noise / parameter.shape[1] ** 0.5
        if "lm_head" in name:
            noise[list(quiet)] = 0
        parameter.data.copy_(noise.bfloat16())

@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids])).logits[0].float()

@torch.no_grad()
def greedy(model, ids, count=CONTINUE):
    out, margins = [], []
    for _ in range(count):
        best = torch.topk(logits_of(model, ids + out)[-1], 2)
        out.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 4))
    return out, margins

def rounded(row):
    return [float(f"{v:.7g}") for v in row.tolist()]

def make_family(name, f):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = make_tokenizer(os.makedirs(folder) or folder, f)
    config = f["config"](hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                         num_key_value_heads=f.get("kv_heads", KV_HEADS), head_dim=f.get("head_dim", HEAD_DIM),
                         vocab_size=f.get("vocab", VOCAB), max_position_embeddings=CONTEXT,
                         rms_norm_eps=1e-5, tie_word_embeddings=f["tied"], bos_token_id=f["bos"], eos_token_id=f["eos"])
    torch.manual_seed(f["seed"])
    model = AutoModelForCausalLM.from_config(config)
    # Bytes at random are no text; that of a line's end is.
    random_weights(model, f["seed"], [i for piece, i in tokenizer.get_vocab().items()
                                     if piece.startswith("<0x") and piece != "<0x0A>"])
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="70KB" if f.get("shards") else "1GB")
    path = os.path.join(folder, "config.json")
    written = json.load(open(path))
    if name != "qwen3":
        written.pop("rope_parameters", None)
        written["torch_dtype"] = written.pop("dtype")
        written.pop("layer_types", None)
    json.dump(f["edit"](written), open(path, "w"), indent=1)
    json.dump(dict(eos_token_id=f["eos"]), open(os.path.join(folder, "generation_config.json"), "w"))
    write_golden(name, folder, tokenizer, *(AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager").eval() for dtype in (torch.float32, torch.bfloat16)))

def quantize(weight, block):
    """8-bit floats and their scales, one for each block of [rows, cols]; the values that they stand for."""
    rows, cols = weight.shape
    scales = torch.empty(-(-rows // block[0]), -(-cols // block[1]))
    stored, values = torch.empty(rows, cols, dtype=torch.float8_e4m3fn), torch.empty(rows, cols)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
            scales[i, j] = (weight[part].abs().max() / 448).bfloat16().float()
            stored[part] = (weight[part] / scales[i, j]).to(torch.float8_e4m3fn)
            values[part] = stored[part].float() * scales[i, j]
    return stored, scales, values

def make_fp8():
    """The kinds of scales that files have, all in one model: blocks in the FFN, rows for q, k and v, one number for o."""
    folder = os.path.join(HERE, "fp8")
    shutil.rmtree(folder, ignore_errors=True)
    f = FAMILIES["smollm2"]
    tokenizer = make_tokenizer(os.makedirs(folder) or folder, f)
    config = LlamaConfig(hidden_size=HIDDEN, intermediate_size=160, num_hidden_layers=1, num_attention_heads=HEADS,
                         num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, vocab_size=VOCAB, max_position_embeddings=CONTEXT,
                         rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, rope_theta=10000.0,
                         architectures=["LlamaForCausalLM"], attn_implementation="eager")
    model = AutoModelForCausalLM.from_config(config)
    random_weights(model, 6)
    tensors = {}
    for name, parameter in model.named_parameters():
        if "_proj" not in name:
            tensors[name] = parameter.data.bfloat16()
            continue
        in_blocks = "mlp" in name
        whole = "o_proj" in name
        block = (128, 128) if in_blocks else parameter.shape if whole else (1, parameter.shape[1])
        stored, scales, values = quantize(parameter.data, block)
        parameter.data.copy_(values)
        tensors[name] = stored
        tensors[name + ("_scale_inv" if in_blocks else "_scale")] = (
            scales if in_blocks else scales.reshape(()).clone() if whole else scales.bfloat16())
        if not in_blocks:
            tensors[name.replace("weight", "input_scale")] = torch.tensor(0.5)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    written = dict(config.to_diff_dict(), quantization_config=dict(
        quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128]))
    json.dump(written, open(os.path.join(folder, "config.json"), "w"), indent=1)
    model = model.float().eval()
    brain = AutoModelForCausalLM.from_config(config).eval()
    brain.load_state_dict(model.state_dict())
    write_golden("fp8", folder, tokenizer, model, brain.bfloat16())

PROMPTS = ["The old house", "caf\u00e9 and  the garden", "<s> [INST] the letter [/INST]"]

def continue_text(model, tokenizer, prompt):
    """What follows the prompt in the text of both, as tokenizers decodes it."""
    ids = tokenizer.encode(prompt).ids
    out, margins = greedy(model, ids, 16)
    assert min(margins) > 0.02, (prompt, margins)  # else: another seed
    before, after = tokenizer.decode(ids), tokenizer.decode(ids + out)
    assert after.startswith(before)
    print(repr(after[len(before):]))
    return dict(prompt=prompt, ids=ids, text=after[len(before):])

def write_golden(name, folder, tokenizer, model, brain):
    prompts = [tokenizer.encode("The old house", add_special_tokens=False).ids, [(i * 7919 + 13) % 300 for i in range(180)]]
    cases = []
    for ids in prompts:
        logits = logits_of(model, ids)
        positions = sorted({len(ids) // 2, len(ids) - 1})
        tokens, margins = greedy(model, ids)
        cases.append(dict(ids=ids, positions=positions, logits=[rounded(logits[p]) for p in positions],
                          bf16_last=rounded(logits_of(brain, ids)[-1]), greedy=tokens, margins=margins))
        print(name, len(ids), tokens[:8], min(margins))
    texts = [dict(text=t, ids=tokenizer.encode(t, add_special_tokens=False).ids, special=tokenizer.encode(t).ids) for t in TEXTS]
    rotary = model.model.rotary_emb.inv_freq.tolist()
    golden = dict(cases=cases, texts=texts, inv_freq=rotary)
    if "sentencepiece" in FAMILIES.get(name, {}):
        golden["continued"] = [continue_text(model, tokenizer, prompt) for prompt in PROMPTS]
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as out:
        json.dump(golden, out, separators=(",", ":"))
        out.write("\n")

wanted = sys.argv[1:] or [*FAMILIES, "fp8"]
for name, f in FAMILIES.items():
    if name in wanted:
        make_family(name, f)
if "fp8" in wanted:
    make_fp8()
