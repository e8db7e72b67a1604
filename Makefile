# Verdict: one Makefile for everything, outputs under build/. `make help` lists the targets.
#   make SAN=asan|ubsan|tsan    the same targets with a sanitizer, under build-asan/ and so on
#   make CUDA=0|1               without or with the GPU side (default: with it where nvcc is found)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
SHELL := /bin/bash

SAN ?=
B := build$(if $(SAN),-$(SAN))
PREFIX ?= /usr/local
PYTHON ?= python3
# A Python with llama-cpp-python[server], for test-peers
PEERS_PYTHON ?= $(PYTHON)
ifeq ($(origin CC),default)
CC := gcc
endif
# make V=1 shows commands
Q := $(if $(V),,@)
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA ?= $(if $(NVCC),1,0)

MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
export VERDICT_MODEL ?= $(CURDIR)/$(MODEL)

# Identity of the sources: the commit, with "+" when files differ from it.
VERSION := 0.1.0
BUILD_HASH := $(shell git describe --always --dirty=+ --abbrev=12 --exclude '*' 2>/dev/null || echo unknown)

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wno-unused-parameter \
	-Wvla -Wundef
SAN_FLAGS_asan := -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all
SAN_FLAGS_ubsan := -fsanitize=undefined -fno-sanitize-recover=all
SAN_FLAGS_tsan := -fsanitize=thread
SAN_FLAGS_fuzz := -fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all
# SANITIZED: the sizes of slow tests follow it, tests/support/sizes.h.
SAN_FLAGS := $(if $(SAN),$(SAN_FLAGS_$(SAN)) -DSANITIZED)
# -ffp-contract=off: bits must not depend on which products the compiler chooses to fuse.
CFLAGS ?= -O2 -g
ALL_CFLAGS = -std=c17 -D_GNU_SOURCE -I. -pthread -ffp-contract=off $(WARNINGS) $(CFLAGS) $(SAN_FLAGS) $(PKG_CFLAGS) -MMD -MP
ALL_LDFLAGS = -pthread $(LDFLAGS) $(SAN_FLAGS)
ISA_AVX2 := -mavx2 -mfma -mf16c
ISA_AVX512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c -mprefer-vector-width=512

PKGS := jansson libmicrohttpd libpcre2-8 libutf8proc libcurl sqlite3
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LIBS_ENGINE := -ljansson -lmicrohttpd -lpcre2-8 -lutf8proc -lm
LIBS_HARNESS := -ljansson -lmicrohttpd -lcurl -lsqlite3 -lm
LIBS_TEST := -lcmocka -ljansson -lmicrohttpd -lpcre2-8 -lutf8proc -lcurl -lsqlite3 -lm

sources = $(sort $(wildcard $(addsuffix /*.c,$(1))))
objects = $(patsubst %.c,$(B)/obj/%.o,$(1))

BASE_SRC := $(call sources,base)
KERNELS_SRC := $(call sources,kernels kernels/cpu kernels/comm)
ENGINE_SRC := $(filter-out engine/main.c,$(call sources,engine))
HARNESS_SRC := $(filter-out harness/main.c,$(call sources,harness))
SUPPORT_SRC := $(filter-out tests/support/%_main.c,$(call sources,tests/support))
# Speed, numbers and limits on work, slow where every access is watched; their only threads are the pool's, which other tests look at.
TESTS_NOT_tsan := $(patsubst %,tests/engine/test_%.c,bench golden_logits jinja sampler)
# Those of tests/gpu/ are built in kernels/cuda/build.mk.
TEST_SRC := $(filter-out tests/gpu/% $(TESTS_NOT_$(SAN)),$(wildcard tests/*/test_*.c))
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
TOOL_MAIN_SRC := $(wildcard tests/support/*_main.c tests/bench/bench_*.c)
ALL_SRC := $(BASE_SRC) $(KERNELS_SRC) $(ENGINE_SRC) $(HARNESS_SRC) $(wildcard engine/main.c harness/main.c) $(SUPPORT_SRC) \
	$(TEST_SRC) $(FUZZ_SRC) $(TOOL_MAIN_SRC)
ALL_HEADERS := $(wildcard base/*.h kernels/*.h kernels/*/*.h engine/*.h harness/*.h tests/support/*.h)

FAKE_SRC := $(wildcard tests/support/fake/*.c)
ALL_SRC += $(FAKE_SRC)

TESTS := $(patsubst %.c,$(B)/%,$(TEST_SRC))
TOOLS := $(patsubst %.c,$(B)/%,$(TOOL_MAIN_SRC))
PROGRAMS := $(B)/verdict $(B)/verdict-engine

include kernels/cuda/build.mk

.PHONY: all programs help deps model demo test test-kills test-peers lint format format-check asan ubsan tsan fuzz bench-cpu bench-client bench-race install clean results.db

all: programs $(if $(filter 1,$(CUDA)),cuda) ## both programs; the GPU side too where nvcc is found
programs: $(PROGRAMS)

help: ## this list
	@grep -hE '^[a-z0-9_. -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/|/' | awk -F'|' '{printf "  %-14s %s\n", $$1, $$2}'

# --- compiling -------------------------------------------------------------------------------------------------------

# clang's undefined-behaviour sanitizer takes minutes for a vector file; gcc's looks at them in the asan build.
VECTOR_SAN := $(if $(filter fuzz,$(SAN)),-fno-sanitize=undefined)
$(B)/obj/%_avx2.o: EXTRA = $(ISA_AVX2) $(VECTOR_SAN)
$(B)/obj/%_avx512.o: EXTRA = $(ISA_AVX512) $(VECTOR_SAN)
$(B)/obj/base/version.o: EXTRA = -DVERDICT_VERSION='"$(VERSION)"' -DVERDICT_BUILD_HASH='"$(BUILD_HASH)"'
$(B)/obj/base/version.o: $(B)/build-hash

$(B)/obj/harness/patterns.o: $(wildcard harness/patterns/*.txt)

# Rewritten only when the hash changed, so that version.o follows it.
.PHONY: FORCE
$(B)/build-hash: FORCE
	@mkdir -p $(@D); echo '$(VERSION) $(BUILD_HASH)' | cmp -s - $@ || echo '$(VERSION) $(BUILD_HASH)' > $@

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "CC    $<"
	$(Q)$(CC) $(ALL_CFLAGS) $(EXTRA) -c $< -o $@

$(B)/libbase.a: $(call objects,$(BASE_SRC))
$(B)/libkernels.a: $(call objects,$(KERNELS_SRC))
$(B)/libengine.a: $(call objects,$(ENGINE_SRC))
$(B)/libharness.a: $(call objects,$(HARNESS_SRC))
$(B)/libtestsupport.a: $(call objects,$(SUPPORT_SRC))
$(B)/lib%.a:
	@rm -f $@
	@echo "AR    $@"
	$(Q)ar rcs $@ $^

$(B)/verdict-engine: $(B)/obj/engine/main.o $(B)/libengine.a $(B)/libkernels.a $(B)/libbase.a
	@echo "LD    $@"
	$(Q)$(CC) $(ALL_LDFLAGS) $^ $(LIBS_ENGINE) -o $@
$(B)/verdict: $(B)/obj/harness/main.o $(B)/libharness.a $(B)/libbase.a
	@echo "LD    $@"
	$(Q)$(CC) $(ALL_LDFLAGS) $^ $(LIBS_HARNESS) -o $@

# A test program is linked with the layers its folder is about, and those below.
LAYERS_base := $(B)/libtestsupport.a $(B)/libbase.a
LAYERS_kernels := $(B)/libtestsupport.a $(B)/libkernels.a $(B)/libbase.a
LAYERS_engine := $(B)/libtestsupport.a $(B)/libengine.a $(B)/libkernels.a $(B)/libbase.a
LAYERS_harness := $(B)/libtestsupport.a $(B)/libharness.a $(B)/libbase.a
LAYERS_any := $(B)/libtestsupport.a $(B)/libharness.a $(B)/libengine.a $(B)/libkernels.a $(B)/libbase.a
layers = $(or $(LAYERS_$(word 2,$(subst /, ,$(1)))),$(LAYERS_any))

FUZZERS := $(FUZZ_SRC:tests/fuzz/%.c=$(B)/%)
$(FUZZERS): $(B)/%: $(B)/obj/tests/fuzz/%.o $(LAYERS_any)
	@echo "LD    $@"
	$(Q)$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_TEST) -o $@

.SECONDEXPANSION:
$(TESTS) $(TOOLS): $(B)/tests/%: $(B)/obj/tests/%.o $$(call layers,tests/$$*)
	@mkdir -p $(@D)
	@echo "LD    $@"
	$(Q)$(CC) $(ALL_LDFLAGS) $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_TEST) -o $@

# Libraries that stand for those of a driver, found through LD_LIBRARY_PATH as real ones are.
FAKES := $(addprefix $(B)/tests/fake/,nvml/libnvidia-ml.so.1 nvml-errors/libnvidia-ml.so.1 nvml-old/libnvidia-ml.so.1 \
	nvml-live/libnvidia-ml.so.1 nccl/libnccl.so.2)
$(B)/tests/fake/nvml-errors/%: FAKE_FLAGS = -DFAKE_ERRORS
$(B)/tests/fake/nvml-old/%: FAKE_FLAGS = -DFAKE_OLD
$(filter %ml.so.1,$(FAKES)): tests/support/fake/nvml_fake.c tests/support/fake/nvml_fake.h
$(filter-out %nvml-live/libnvidia-ml.so.1,$(filter %ml.so.1,$(FAKES))): tests/support/fake/nvml.c
$(filter %nvml-live/libnvidia-ml.so.1,$(FAKES)): tests/support/fake/nvml_live.c
$(filter %nccl.so.2,$(FAKES)): tests/support/fake/nccl.c
$(FAKES):
	@mkdir -p $(@D)
	@echo "LD    $@"
	$(Q)$(CC) -std=c17 -D_GNU_SOURCE $(WARNINGS) -O1 -g -fPIC -shared $(FAKE_FLAGS) $(filter %.c,$^) -o $@
$(B)/tests/harness/test_nvml $(B)/tests/harness/test_gpu_runs: | $(FAKES)

-include $(patsubst %.c,$(B)/obj/%.d,$(ALL_SRC))

# --- setting up ------------------------------------------------------------------------------------------------------

deps: ## install the Debian or Ubuntu packages that are missing (root or sudo)
	@bash tools/deps.sh

model: $(MODEL) ## fetch the small real model (98 MB) and check its hash
$(MODEL):
	@bash tools/model.sh $@

# What `make demo` and `make test` need before anything is compiled: headers first, then the parse of pkg-config again.
.PHONY: setup
setup:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory model

# --- running ---------------------------------------------------------------------------------------------------------

demo: setup ## the main job: which of four settings helps SmolLM2 on this machine?
	@$(MAKE) --no-print-directory -j2 programs CUDA=0
	$(B)/verdict run experiments/quickstart.json --db results.db

test: setup ## every test; closes with "N passed, N failed"
	@$(MAKE) --no-print-directory -j2 programs test-programs CUDA=0
	@bash tools/run-tests.sh $(B)

test-kills: setup ## a run killed at 200 random moments (KILLS=N): nothing lost, nothing twice
	@$(MAKE) --no-print-directory -j2 $(B)/tests/harness/test_kills CUDA=0
	$(B)/tests/harness/test_kills $(or $(KILLS),200)

test-peers: programs model ## llama.cpp for real: its settings, and it beside our engine (PEERS_PYTHON has llama-cpp-python[server])
	@bash tools/test-peers.sh $(B) $(PEERS_PYTHON)

.PHONY: test-programs
test-programs: $(TESTS) $(TOOLS)

results.db: programs ## import the recorded reference measurements (never deletes a row)
	$(B)/verdict import experiments/reference --db results.db

bench-cpu: programs model ## decode and prefill beside llama.cpp on the same files and threads
	$(PYTHON) tools/bench_cpu.py

bench-client: $(B)/tests/bench/bench_client ## what one event of a token stream costs our client (VLLM_PYTHON: beside vLLM's)
	$(if $(VLLM_PYTHON),$(VLLM_PYTHON) tools/bench_client_vllm.py )$<

bench-race: $(B)/tests/bench/bench_race ## launches that a race needs against a fixed design, with servers really launched
	$<

# --- keeping it clean ------------------------------------------------------------------------------------------------

format: ## rewrite C sources in house style
	clang-format -i $(ALL_SRC) $(ALL_HEADERS)
format-check:
	clang-format --dry-run --Werror $(ALL_SRC) $(ALL_HEADERS)

lint: ## clang-tidy and cppcheck
	@bash tools/lint.sh

asan ubsan tsan: ## the unit tests under a sanitizer
	@$(MAKE) --no-print-directory -j2 SAN=$@ CUDA=0 sanitized
.PHONY: sanitized
sanitized: programs test-programs
	@bash tools/run-tests.sh $(B)

fuzz: ## each fuzzer for FUZZ_SECONDS (default 20) with clang's libFuzzer
	@$(MAKE) --no-print-directory -j2 SAN=fuzz CC=clang CFLAGS="-O1 -g" CUDA=0 fuzzers
	@bash tools/fuzz.sh $(or $(FUZZ_SECONDS),20)
.PHONY: fuzzers
fuzzers: $(FUZZERS)

install: programs ## PREFIX (/usr/local) and DESTDIR are respected
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/verdict/experiments
	install -m 755 $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin
	cp -R experiments/*.json $(wildcard experiments/prompts) $(DESTDIR)$(PREFIX)/share/verdict/experiments
	cp -R harness/patterns $(DESTDIR)$(PREFIX)/share/verdict

clean: ## remove everything that was built
	rm -rf build build-asan build-ubsan build-tsan build-fuzz
