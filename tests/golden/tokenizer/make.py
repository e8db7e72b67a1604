#!/usr/bin/env python3
"""Remakes strings.jsonl, special.jsonl and classes.json from Hugging Face tokenizers.

usage: make.py MODEL.gguf        (needs the Python packages tokenizers and gguf; run by hand)

The reference tokenizers are built from the vocabulary and merges in the GGUF file and the published pre-tokenizers of each
family, so that every rule is compared on the same vocabulary.
"""
import json
import os
import random
import sys
import unicodedata

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def read_vocabulary(path):
    fields = gguf.GGUFReader(path).fields
    return [fields["tokenizer.ggml." + name].contents() for name in ("tokens", "merges", "token_type")]


def build(tokens, merges, rule):
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=rule == "llama-bpe"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule in ("gpt-2", "smollm"))
    first = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
        "llama-bpe": [pre_tokenizers.Split(Regex(LLAMA3), "isolated")],
        "qwen2": [pre_tokenizers.Split(Regex(QWEN2), "isolated")],
    }[rule]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(first + [byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


# --- strings ---------------------------------------------------------------------------------------------------------

SENTENCES = [
    "All human beings are born free and equal in dignity and rights.",
    "It's what we'd've said if they'll listen: don't, can't, won't, I'm, you're.",
    "IT'S WHAT WE'D'VE SAID IF THEY'LL LISTEN: DON'T, I'M, YOU'RE.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren; Straßenübergänge größer als 3½ m².",
    "Tous les êtres humains naissent libres et égaux. L'œuvre d'été, c'est-à-dire « aujourd'hui » !",
    "Todos los seres humanos nacen libres. ¿Mañana? ¡Sí, señor! El niño comió piñas.",
    "Všichni lidé se rodí svobodní; příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Wszyscy ludzie rodzą się wolni i równi; zażółć gęślą jaźń.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng.",
    "Bütün insanlar hür doğar; İstanbul'da ılık bir gün, ŞIK.",
    "Все люди рождаются свободными и равными в своём достоинстве.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι.",
    "כל בני האדם נולדו בני חורין ושווים. שָׁלוֹם",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق ١٢٣٤٥٦٧٨٩٠ ۱۲۳",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता १२३४ है। क्षत्रिय ज्ञान",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা ১২৩",
    "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน ๑๒๓",
    "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "すべての人間は、生まれながらにして自由であり、ｶﾀｶﾅ 全角ＡＢＣ１２３。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "ყველა ადამიანი იბადება თავისუფალი", "Բոլոր մարդիկ ծնվում են ազատ", "ሁሉም ሰው በነጻነት ይወለዳል ፩፪፫", "ᎣᏏᏲ ᏗᏓᏅᏛ", "ꦱꦼꦏꦧꦺꦃ",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 🇩🇪🇯🇵, 👍🏽 skin, ❤️ heart, ☺ text, 🧑🏿‍💻",
    "∀x∈ℝ: ∃y ≥ x² ⇒ ∑ᵢ aᵢ·10⁻³ ≈ √π ± ∞, Ⅷ ⅓ ① ⓬ 𝟘𝟙𝟚 𝐀𝛼",
    "E = mc^2; 3.14159; 1,234,567.89; 0x1F; 1e-10; 2024-11-29T22:43:02Z; 192.168.0.1; +49 (0)30 1234567",
    "https://example.org/a/b?q=1&r=%20x#frag user.name+tag@example.co.uk C:\\Users\\x\\file.txt /usr/lib/x86_64",
    "snake_case camelCase PascalCase kebab-case SCREAMING_SNAKE __init__ a.b.c->d::e",
]

CODE = [
    "#include <stdio.h>\n\nint main(int argc, char **argv)\n{\n\tfor (int i = 0; i < 10; i++)\n\t\tprintf(\"%d\\n\", i);\n\treturn 0;\n}\n",
    "def f(x: int, *args, **kw) -> dict[str, int]:\n    \"\"\"Doc.\"\"\"\n    if x >= 10 and not kw:\n        return {k: v for k, v in zip('abc', args)}\n    raise ValueError(f\"bad {x!r}\")\n",
    "fn main() -> Result<(), Box<dyn Error>> {\n    let v: Vec<u8> = (0..=255).collect();\n    println!(\"{:?}\", &v[..]);\n    Ok(())\n}\n",
    "package main\r\n\r\nimport \"fmt\"\r\n\r\nfunc main() {\r\n\tch := make(chan int)\r\n\tgo func() { ch <- 1 }()\r\n\tfmt.Println(<-ch)\r\n}\r\n",
    "const x = async () => { await fetch(`/api/${id}?n=${n ?? 0}`).then(r => r.json()); };\n// TODO: [].map(x => x ** 2)\n",
    "SELECT a.id, COUNT(*) AS n FROM t1 a LEFT JOIN t2 b ON a.id = b.id WHERE b.x IS NOT NULL GROUP BY 1 HAVING n > 5;\n",
    "<!DOCTYPE html>\n<html lang=\"en\">\n  <head><title>x &amp; y</title></head>\n  <body class='a b'>\n    <p>text</p>\n  </body>\n</html>\n",
    "{\"a\": [1, 2.5, -3e4, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}",
    "all: build/x\n\nbuild/%.o: %.c\n\t$(CC) -O2 -c $< -o $@\n\n.PHONY: all\n",
    "#!/bin/sh\nset -eu\nfor f in *.txt; do\n  [ -f \"$f\" ] || continue\n  sed -e 's/a\\(b\\)/\\1/g' \"$f\" | awk '{print $1}' >\"out/${f%.txt}\"\ndone\n",
    "main :: IO ()\nmain = mapM_ print $ takeWhile (< 10) [x^2 | x <- [1..], odd x]\n",
    "| a | b |\n|---|:-:|\n| **x** | `y` |\n\n- [ ] item\n  1. one\n\n> quote\n\n```c\nint x;\n```\n",
    "public static <T extends Comparable<T>> void sort(T[] xs) { Arrays.sort(xs); /* é */ }",
    "\\begin{align}\n  \\frac{\\partial f}{\\partial x} &= \\sum_{i=1}^{n} x_i^2 \\\\\n\\end{align}\n",
    "--- a/x.c\n+++ b/x.c\n@@ -1,3 +1,4 @@\n-int a;\n+int b;\n \n",
]

SPACES = [" ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", "\r\n\r\n", "\u00a0", "\u2003", "\u3000", "\u2009", "\u200b",
          "\u2028", "\u2029", "\u0085", "\u1680", "\u180e", "\u202f", "\u205f", "\ufeff", "\v", "\f", "\x1c", "\x1f", " \n", "\n ", " \t ", " " * 17,
          " \u00a0", "\u00a0 "]
DIGITS = ["0", "7", "12", "123", "1234", "98765432109876543210", "٣", "٤٥", "۴", "१२", "৩", "๓", "²", "³¹", "½", "⅔", "Ⅳ", "①", "㉑", "𝟗", "１２３", "零",
          "፩", "𑁦", "🄁", "೯", "༣", "᠓", "\U00011de0", "\U00016ff4", "\U0001ccf0", "\U00010d40"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D", "'ſ", "’s", "''s", "'x", "'", "'sa", "'reX", "'11"]
WORDS = ["Hello", "world", "the", "I", "a", "naïve", "cafe\u0301", "Straße", "ﬁne", "ǅ", "Å", "\u212b", "日本", "한글", "\u1112\u1161\u11ab", "ñ", "n\u0303", "x\u0327\u0301", "q\u0307\u0323",
         "ไทย", "क्षि", "مرحبا", "שלום", "_", "--", "...", "!?", "()", "[]", "{}", "<|", "|>", "&&", "**", "#", "@user", "€5", "™", "🙂", "👨‍👩‍👧", "\u0301", "\u0300\u0316",
         "\ufffd", "\U0001f1e9", "\U000e0067", "\u1c89", "\ua7cb", "\U0002ebf0", "\U00031350", "\U00013460", "\ue000", "\U0010ffff"]


def random_code_point(rng):
    ranges = [(0, 0x7F), (0x80, 0x24F), (0x250, 0x7FF), (0x800, 0xFFF), (0x1000, 0x2FFF), (0x3000, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF),
              (0x20000, 0x323AF), (0xE0000, 0xE01EF), (0, 0x10FFFF)]
    while True:
        low, high = rng.choice(ranges)
        point = rng.randint(low, high)
        if not 0xD800 <= point <= 0xDFFF:
            return chr(point)


def make_strings():
    rng = random.Random(20241129)
    out = ["", "a", " ", "  ", "\n", "\x00", "\x00\x00a\x00", "\x7f", "'", "1"]
    out += SENTENCES + CODE + SPACES + DIGITS + CONTRACTIONS + WORDS
    out += [chr(c) for c in range(0x180)] + ["a" + chr(c) + "b" for c in range(0x21)]
    out += ["".join(chr(c) for c in range(start, start + 16)) for start in range(0, 0x100, 16)]
    out += ["x" + s + "y" for s in SPACES] + ["x " + s + "1" for s in SPACES] + [s + "!" for s in SPACES]
    out += ["we" + c for c in CONTRACTIONS] + ["we" + c + "2" for c in CONTRACTIONS] + [" " + c + " x" for c in CONTRACTIONS]
    out += ["a" + d for d in DIGITS] + [" " + d + "x" for d in DIGITS] + ["$" + d + d + "." + d for d in DIGITS]
    out += [s.upper() for s in SENTENCES] + [s.lower() for s in SENTENCES] + [s.replace(" ", "  ") for s in SENTENCES]
    out += [line for text in CODE for line in text.splitlines(keepends=True)]
    out += ["a" * n for n in (7, 100, 3000)] + ["ab" * 1000, "🙂" * 300, " " * 700 + "x", "\n" * 300, "\r\n" * 100, "é" * 500, "1" * 500, "e\u0301" * 300,
                                              "-" * 500, "=" * 80, "の" * 400, " a" * 500, "'s" * 200, "\t" * 100 + "}", "Donaudampfschifffahrtsgesellschaftskapitän" * 20]
    parts = [SPACES, DIGITS, CONTRACTIONS, WORDS]
    while len(out) < 2300:
        out.append("".join(rng.choice(rng.choice(parts)) for _ in range(rng.randint(2, 12))))
    while len(out) < 2800:
        out.append("".join(random_code_point(rng) for _ in range(rng.randint(1, 24))))
    while len(out) < 3200:
        text = rng.choice(SENTENCES + CODE)
        start = rng.randrange(len(text))
        cut = text[start:start + rng.randint(1, 60)]
        place = rng.randrange(len(cut) + 1)
        out.append(cut[:place] + rng.choice(rng.choice(parts)) + cut[place:])
    while len(out) < 3400:
        out.append("".join(chr(rng.choice([rng.randint(0x20, 0x7E), rng.randint(0x20, 0x7E), rng.randint(0, 0x1F)])) for _ in range(rng.randint(1, 40))))
    # Hugging Face normalises by the tables of Unicode 10, where some hundred combining marks are not yet marks. Strings that
    # newer tables order differently are left out: there the standard has decided against the reference.
    reference = normalizers.NFC()
    return [text for text in dict.fromkeys(out) if reference.normalize_str(text) == unicodedata.normalize("NFC", text)]


def write_strings(tokens, merges):
    tokenizers = {rule: build(tokens, merges, rule) for rule in ("smollm", "gpt-2", "llama-bpe", "qwen2")}
    texts = make_strings()
    with open(os.path.join(HERE, "strings.jsonl"), "w", encoding="utf-8") as out:
        for text in texts:
            ids = {rule: tokenizer.encode(text).ids for rule, tokenizer in tokenizers.items()}
            row = {"text": text, "smollm": ids.pop("smollm")}
            row.update({rule: found for rule, found in ids.items() if found != row["smollm"]})
            out.write(json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(len(texts), "strings")


# --- special tokens --------------------------------------------------------------------------------------------------

def write_special(tokens, merges, kinds):
    special = [token for token, kind in zip(tokens, kinds) if kind == 3]
    tokenizer = build(tokens, merges, "smollm")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    rng = random.Random(7)
    texts = special + ["<|im_start|>user\nHi  there 12<|im_end|>\n<|im_start|>assistant\n", "<|im_end|", "<|im_end|>>", "<<|im_end|>", "<|im_<|im_end|>end|>", "<|IM_END|>",
                       "a <|im_end|> b", "a<|endoftext|><|endoftext|> ", "<repo_name>x<file_sep>y", "<repo_name", "<reponame>", "x   <|im_end|>  y", "'<|im_end|>'s"]
    while len(texts) < 200:
        texts.append("".join(rng.choice(special + WORDS + SPACES + SENTENCES[:3] + ["<", "<|", "|>", "<|im", "_end|>"]) for _ in range(rng.randint(1, 8))))
    with open(os.path.join(HERE, "special.jsonl"), "w", encoding="utf-8") as out:
        for text in texts:
            out.write(json.dumps({"text": text, "smollm": tokenizer.encode(text).ids}, separators=(",", ":")) + "\n")
    print(len(texts), "strings with special tokens")


# --- classes of code points ------------------------------------------------------------------------------------------

def ranges(points):
    out = []
    for point in points:
        if out and out[-1][1] == point - 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def write_classes():
    every = [chr(point) for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF]
    classes = {}
    for name, pattern in (("space", r"\s"), ("letter", r"\p{L}"), ("number", r"\p{N}")):
        removes = pre_tokenizers.Split(Regex(pattern), "removed")
        classes[name] = ranges(ord(c) for c in every if not removes.pre_tokenize_str(c))
    digits = pre_tokenizers.Digits(individual_digits=True)
    classes["digit"] = ranges(ord(c) for c in every if len(digits.pre_tokenize_str("a" + c + "a")) == 3)
    with open(os.path.join(HERE, "classes.json"), "w", encoding="utf-8") as out:
        json.dump(classes, out, separators=(",", ":"))
        out.write("\n")
    print({name: len(found) for name, found in classes.items()}, "ranges")


def main():
    tokens, merges, kinds = read_vocabulary(sys.argv[1])
    write_strings(tokens, merges)
    write_special(tokens, merges, kinds)
    write_classes()


if __name__ == "__main__":
    main()
