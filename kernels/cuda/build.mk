# GPU side. Filled by the CUDA backend; until then `make all` with nvcc builds the CPU side alone.
.PHONY: cuda
cuda:
	@:
