/* Normaliser and pre-tokenizer of a tokenizer.json as a splitting rule. */
#ifndef ENGINE_TOKENIZER_HF_PRE_H
#define ENGINE_TOKENIZER_HF_PRE_H

#include "base/err.h"
#include "base/json.h"
#include "engine/tokenizer_pre.h"

/* The rule of a pre_tokenizer part. The chains of the families that engine/tokenizer_pre.h names give those rules; of others, a
 * Split by a regular expression is taken with its own pattern, which is borrowed from the document (name is then "regex").
 * The rest is refused with code "unsupported_tokenizer", by the name of its place. */
enum status tokenizer_hf_pre(const struct json *pre_tokenizer, struct pre_rule *out, struct err *err);

/* None or NFC; others are refused likewise. */
enum status tokenizer_hf_normalizer(const struct json *normalizer, bool *nfc, struct err *err);

#endif
