#!/usr/bin/env bash
# Makes a folder that runs on a machine with a GPU and a CUDA image: both programs, the GPU tests and measuring programs, the libraries that
# such an image lacks, the experiments, and run.sh. Programs find the libraries by their rpath, $ORIGIN.
# usage: dist-gpu.sh BUILD_DIR OUT_DIR
set -euo pipefail

build=${1:?usage: dist-gpu.sh BUILD_DIR OUT_DIR}
out=${2:?usage: dist-gpu.sh BUILD_DIR OUT_DIR}
rm -rf "$out"
mkdir -p "$out"

for program in "$build"/cuda/*; do
	[ -f "$program" ] && [ -x "$program" ] && [[ $program != *.so* ]] && cp "$program" "$out/"
done
strip "$out"/*

# What the driver, the CUDA image and every Linux have stays out.
provided='/(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libcuda|libcublas|libcublasLt|libcudart|libnccl|libnvidia-ml)\.so'
for program in "$out"/*; do
	[ -f "$program" ] && ldd "$program" | awk '$3 ~ /^\// { print $3 }'
done | sort -u | grep -Ev "$provided" | while read -r library; do
	cp -L "$library" "$out/"
done

mkdir "$out/experiments"
cp experiments/h200-*.json experiments/schema.json "$out/experiments/"
cp tools/gpu-run.sh "$out/run.sh"
du -sh "$out"
