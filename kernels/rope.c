/* Table of rotary position angles. */
#include <math.h>

#include "kernels/kn.h"

void kn_rope_table_fill(float *out, int64_t context, int head_dim, double freq_base, const float *freq_factors)
{
	for (int i = 0; i < head_dim / 2; i++) {
		double frequency = pow(freq_base, -2.0 * i / head_dim) / (freq_factors ? (double)freq_factors[i] : 1.0);

		for (int64_t position = 0; position < context; position++) {
			out[position * head_dim + 2 * i] = (float)cos((double)position * frequency);
			out[position * head_dim + 2 * i + 1] = (float)sin((double)position * frequency);
		}
	}
}
