/* How the vector files write a loop once for several sizes: the sizes are constant arguments of functions that are inlined. */
#ifndef KERNELS_CPU_SPECIALIZE_H
#define KERNELS_CPU_SPECIALIZE_H

#define SPECIALIZED static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#endif
