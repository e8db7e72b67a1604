#!/usr/bin/env bash
# Makes a folder that runs on a machine with a GPU and a CUDA image: both programs, the GPU tests and measuring programs, the libraries that
# such an image lacks, the experiments, and run.sh. Programs find the libraries by their rpath, $ORIGIN.
# usage: dist-gpu.sh BUILD_DIR OUT_DIR
set -euo pipefail

build=${1:?usage: dist-gpu.sh BUILD_DIR OUT_DIR}
out=${2:?usage: dist-gpu.sh BUILD_DIR OUT_DIR}
rm -rf "$out"
mkdir -p "$out"

find "$build/cuda" -maxdepth 1 -type f -executable -exec cp {} "$out/" \;
strip "$out"/*

# What the driver, the CUDA image and every Linux have stays out.
provided='/(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libcuda|libcublas|libcublasLt|libcudart|libnccl|libnvidia-ml)\.so'
for program in "$out"/*; do
	ldd "$program" | awk '$3 ~ /^\// { print $3 }'
done | sort -u | grep -Ev "$provided|/libverdict-cuda" | while read -r library; do
	cp -L "$library" "$out/"
done

mkdir -p "$out/experiments" "$out/tools" "$out/tests/golden"
cp -R experiments/h200-*.json experiments/schema.json experiments/prompts "$out/experiments/"
# What the tests read, run from the bundle's folder. The real model (98 MB) does not travel: put it in models/ there for the rest of them.
cp -R tests/golden/families tests/golden/logits tests/golden/text "$out/tests/golden/"
cp tools/random_model.py tools/random_gguf.py tools/start_time.py tools/bench_transformers.py "$out/tools/"
cp tools/gpu-run.sh "$out/run.sh"
du -sh "$out"
