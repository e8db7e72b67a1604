#!/usr/bin/env python3
"""Remakes conversations.jsonl: token ids of transformers' apply_chat_template under several ChatML templates.

usage: make.py MODEL.gguf        (needs the Python packages transformers, jinja2, tokenizers and gguf; run by hand)
"""
import json
import os
import random
import sys

import gguf
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tokenizer"))
import make as reference  # noqa: E402  (the tokenizer's golden script: same reference, same strings)

# Spellings of the family as they are met in files. "model" is the one in MODEL.gguf.
TEMPLATES = {
    "plain": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "defined": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
               "{% for message in messages %}{{ \"<|im_start|>\" ~ message.role ~ \"\\n\" ~ message.content ~ \"<|im_end|>\\n\" }}{% endfor %}"
               "{% if add_generation_prompt %}{{ \"<|im_start|>assistant\\n\" }}{% endif %}",
    "lines": "{# one tag a line #}\n{% for message in messages %}\n  {% if loop.first and messages[0]['role'] != 'system' %}\n"
             "{{ '<|im_start|>system\\nYou are a helpful assistant<|im_end|>\\n' }}\n  {%- endif %}\n"
             "  {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' -}}\n{% endfor %}\n"
             "{% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}\n",
    "before": "{{ bos_token }}{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nIt\\'s \"me\".<|im_end|>\\n' }}{% endif %}"
              "{% for message in messages %}{{ ('<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n') }}{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


def make_conversations(special):
    rng = random.Random(11)
    strings = [text for text in reference.make_strings() if not any(token in text for token in special) and len(text) < 400]
    fixed = [
        [("user", "Hello")],
        [("system", "You are terse."), ("user", "What is 2 + 2?")],
        [("user", "Hi"), ("assistant", "Hello! How can I help?"), ("user", "Tell me a joke.")],
        [("user", "")],
        [("system", ""), ("user", " ")],
        [("user", "\n\n leading and trailing \n\n")],
        [("user", "a"), ("user", "b"), ("assistant", "c")],
        [("tool", "{\"x\": 1}"), ("system", "late"), ("assistant", "")],
        [("assistant", "I speak first.")],
    ]
    for _ in range(191):
        roles = [rng.choice(["system", "user"])] + [rng.choice(["user", "assistant", "tool"]) for _ in range(rng.randint(0, 4))]
        fixed.append([(role, rng.choice(strings)) for role in roles])
    return fixed


def main():
    tokens, merges, kinds = reference.read_vocabulary(sys.argv[1])
    TEMPLATES["model"] = gguf.GGUFReader(sys.argv[1]).fields["tokenizer.chat_template"].contents()
    special = [token for token, kind in zip(tokens, kinds) if kind == 3]
    tokenizer = reference.build(tokens, merges, "smollm")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>")
    with open(os.path.join(HERE, "conversations.jsonl"), "w", encoding="utf-8") as out:
        for number, conversation in enumerate(make_conversations(special)):
            for name, template in TEMPLATES.items():
                if name != "model" and number >= 40:
                    continue
                messages = [{"role": role, "content": content} for role, content in conversation]
                ids = fast.apply_chat_template(messages, chat_template=template, add_generation_prompt=True, tokenize=True, return_dict=False)
                row = {"template": name, "messages": messages, "ids": ids}
                out.write(json.dumps(row, separators=(",", ":")) + "\n")
    del TEMPLATES["model"]
    with open(os.path.join(HERE, "templates.json"), "w", encoding="utf-8") as out:
        json.dump(TEMPLATES, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
