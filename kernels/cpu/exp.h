/* Constants of the exponential that every instruction set evaluates with the same steps (method: Cephes expf, S. Moshier):
 *   x clamped to [EXP_MIN, EXP_MAX]; t = fma(x, log2 e, EXP_ROUND); n = t - EXP_ROUND, the nearest integer;
 *   r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x)); exp(r) = fma(polynomial(r), r * r, r) + 1; result = exp(r) * 2^n.
 * Largest error seen over [EXP_MIN, 0]: 0.97 units in the last place; tests/kernels/test_micro.c holds it below 2. */
#ifndef KERNELS_CPU_EXP_H
#define KERNELS_CPU_EXP_H

#define EXP_MIN (-86.0f) /* keeps 2^n normal; exp of anything less counts as exp(-86) = 4.5e-38 */
#define EXP_MAX 88.0f
#define EXP_LOG2E 1.44269504088896341f
#define EXP_ROUND 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, which ends up in the low bits */
#define EXP_LN2_HIGH 0.693359375f
#define EXP_LN2_LOW (-2.12194440e-4f)
#define EXP_C0 1.9875691500e-4f
#define EXP_C1 1.3981999507e-3f
#define EXP_C2 8.3334519073e-3f
#define EXP_C3 4.1665795894e-2f
#define EXP_C4 1.6666665459e-1f
#define EXP_C5 5.0000001201e-1f

#endif
