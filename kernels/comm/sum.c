/* The sum in rank order: the one place where partial results of ranks are added on the CPU. */
#include "kernels/comm/common.h"

#include <string.h>

/* Four floats in one register. Spelled as vectors because compilers do not vectorise the loop over parts inside the loop over
 * elements, and the other nesting walks through memory once per part. Loads and stores go through memcpy: no alignment needed. */
#define LANES 4
typedef float lanes_f32 __attribute__((vector_size(16)));
typedef int32_t lanes_i32 __attribute__((vector_size(16)));

#define QUIET_NAN_BITS 0x7fc00000
#define INFINITY_BITS 0x7f800000 /* a larger magnitude is a NaN */
#define MAGNITUDE_MASK 0x7fffffff

static inline lanes_i32 all_lanes(int32_t value)
{
	return (lanes_i32){value, value, value, value};
}

static inline lanes_f32 load(const float *from)
{
	lanes_f32 value;
	memcpy(&value, from, sizeof(value));
	return value;
}

/* A NaN's sign and payload depend on operand order, which compilers may swap, so all NaNs become one. Adding +0.0 turns -0.0
 * into +0.0 and changes nothing else. */
static inline void finish_and_store(float *to, lanes_f32 sum)
{
	lanes_i32 bits;
	sum += (lanes_f32){0.0f, 0.0f, 0.0f, 0.0f};
	memcpy(&bits, &sum, sizeof(bits));
	lanes_i32 is_nan = (bits & all_lanes(MAGNITUDE_MASK)) > all_lanes(INFINITY_BITS);
	bits = (bits & ~is_nan) | (all_lanes(QUIET_NAN_BITS) & is_nan);
	memcpy(to, &bits, sizeof(bits));
}

void comm_sum(float *out, const float *const *parts, int n_parts, size_t count)
{
	size_t i = 0;
	for (; i + 2 * LANES <= count; i += 2 * LANES) {
		lanes_f32 low = load(parts[0] + i), high = load(parts[0] + i + LANES);
		for (int part = 1; part < n_parts; part++) {
			low += load(parts[part] + i);
			high += load(parts[part] + i + LANES);
		}
		finish_and_store(out + i, low);
		finish_and_store(out + i + LANES, high);
	}
	for (; i < count; i++) {
		float sum[LANES] = {parts[0][i]}, finished[LANES];
		for (int part = 1; part < n_parts; part++)
			sum[0] += parts[part][i];
		finish_and_store(finished, load(sum));
		out[i] = finished[0];
	}
}
