# GPU side: the CUDA backend as one shared library, and programs that find it beside them under build/cuda/. Included by the Makefile.
# Machine code for Hopper (9.0) and for one older generation (8.0 to 8.9), PTX for what came after Hopper (10.0 and later).

CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_ARCHS ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_100,code=compute_100
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -I. $(CUDA_ARCHS) -Xcompiler -fPIC,-Wall,-Wextra,-Wno-missing-field-initializers
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -lstdc++ -ldl -lrt
CUDA_RPATH := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN' -Wl,-rpath,$(CUDA_HOME)/lib64

# Sources named *_hopper.cu use instructions that exist on sm_90a alone; other GPUs never get to them.
$(B)/obj/kernels/cuda/%_hopper.o: override CUDA_ARCHS := -gencode arch=compute_90a,code=sm_90a

CUDA_OBJ := $(patsubst %.cu,$(B)/obj/%.o,$(wildcard kernels/cuda/*.cu))

$(B)/obj/kernels/cuda/%.o: kernels/cuda/%.cu $(wildcard kernels/cuda/*.cuh) kernels/kn.h kernels/dtype.h base/err.h
	@mkdir -p $(@D)
	@echo "NVCC  $<"
	$(Q)$(NVCC) $(NVCC_FLAGS) -c $< -o $@

# One copy of the machine code for all programs. What it takes from base/ and kernels/ the program that loads it gives.
CUDA_BACKEND := $(B)/cuda/libverdict-cuda.so
$(CUDA_BACKEND): $(CUDA_OBJ)
	@mkdir -p $(@D)
	@echo "LD    $@"
	$(Q)$(CC) -shared -Wl,-soname,$(@F) $(LDFLAGS) $^ $(CUDA_LIBS) $(CUDA_RPATH) -o $@

# verdict-engine with the GPU backend: the same objects, but for the one that lists the backends.
$(B)/obj/cuda/device.o: engine/device.c
	@mkdir -p $(@D)
	@echo "CC    $< (CUDA)"
	$(Q)$(CC) $(ALL_CFLAGS) -DVERDICT_CUDA -c $< -o $@
$(B)/cuda/verdict-engine: $(B)/obj/engine/main.o $(B)/obj/cuda/device.o $(B)/libengine.a $(CUDA_BACKEND) $(B)/libkernels.a \
		$(B)/libbase.a
	@mkdir -p $(@D)
	@echo "LD    $@"
	$(Q)$(CC) $(ALL_LDFLAGS) $^ $(CUDA_RPATH) $(LIBS_ENGINE) -o $@

# Programs of tests/gpu/ run on a machine with a GPU; here they are only built.
GPU_TOOL_SRC := $(wildcard tests/gpu/*.c)
GPU_TOOLS := $(patsubst tests/gpu/%.c,$(B)/cuda/%,$(GPU_TOOL_SRC))
# The yardstick calls the GEMM library itself.
$(B)/obj/tests/gpu/bench_gemms.o: ALL_CFLAGS += -isystem $(CUDA_HOME)/include
$(B)/cuda/bench_gemms: GPU_TOOL_LIBS = $(CUDA_LIBS)
$(GPU_TOOLS): $(B)/cuda/%: $(B)/obj/tests/gpu/%.o $(B)/obj/cuda/device.o $(B)/libtestsupport.a $(B)/libengine.a \
		$(CUDA_BACKEND) $(B)/libkernels.a $(B)/libbase.a
	@mkdir -p $(@D)
	@echo "LD    $@"
	$(Q)$(CC) $(ALL_LDFLAGS) $(filter %.o,$^) $(CUDA_BACKEND) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(CUDA_RPATH) \
		$(GPU_TOOL_LIBS) -Wl,--as-needed $(LIBS_TEST) -o $@
-include $(B)/obj/cuda/device.d $(patsubst %.c,$(B)/obj/%.d,$(GPU_TOOL_SRC))

.PHONY: cuda
cuda: $(B)/cuda/verdict-engine $(GPU_TOOLS) ## the GPU build of the engine, its tests and measuring programs

# The harness again, with an rpath: it travels with the engine.
$(B)/cuda/verdict: $(B)/obj/harness/main.o $(B)/libharness.a $(B)/libbase.a
	@mkdir -p $(@D)
	@echo "LD    $@"
	$(Q)$(CC) $(ALL_LDFLAGS) $^ $(LIBS_HARNESS) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN' -o $@

.PHONY: dist-gpu test-gpu bench-gpu
dist-gpu: cuda $(B)/cuda/verdict ## build/dist-gpu: all that a machine with a GPU needs to test and measure, and run.sh
	@bash tools/dist-gpu.sh $(B) $(B)/dist-gpu
# On a machine with a GPU. A bundle that was carried there is taken as it is; without one it is made first.
$(B)/dist-gpu/run.sh:
	@$(MAKE) --no-print-directory dist-gpu
test-gpu: $(B)/dist-gpu/run.sh ## the GPU tests of build/dist-gpu, on a machine with a GPU; gpu-test.json beside them
	$(B)/dist-gpu/run.sh test
bench-gpu: $(B)/dist-gpu/run.sh ## speed of public shapes through HTTP, on a machine with a GPU; gpu-bench.json
	$(B)/dist-gpu/run.sh bench
