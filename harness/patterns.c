/* The files of harness/patterns as part of the program, so that a copied binary knows them too. */
#include "harness/target_common.h"

/* The bytes of a file and a final NUL. */
#define PATTERNS(name) \
	__asm__(".section .rodata\n" \
		".global target_patterns_" #name "\n" \
		"target_patterns_" #name ":\n" \
		".incbin \"harness/patterns/" #name ".txt\"\n" \
		".byte 0\n" \
		".previous\n")

PATTERNS(llamacpp);
PATTERNS(vllm);
PATTERNS(sglang);
PATTERNS(command);
