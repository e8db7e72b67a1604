/* Weights kept in their stored 8-bit and 4-bit forms: layout in device memory, and what the sources about them share.
 *
 * A slice is cut into strips of 16 rows, the height of a tensor core tile; a strip is a run of units, each 16 rows by unit_cols
 * columns and a multiple of 16 bytes, so it streams in whole 16-byte pieces. Within a unit, lane (g, t) = (lane / 4, lane % 4) of a
 * warp finds what it multiplies, rows g and g + 8, beside each other: columns 4t to 4t + 3 and 16 + 4t to 16 + 4t + 3 of every
 * block of 32. These are four pairs of neighbours, numbered 0 to 3; pairs 0 and 1 are one depth of 16, pairs 2 and 3 the next.
 * Bytes are exactly those of the stored form, but for rows rounded up to 16 and columns to a unit (padding has scale 0 or value 0).
 *   nibbles of (row, block): a word; pair p's values are at bit 4p and bit 16 + 4p.
 *   bytes of (row, block): two words, one for each depth of 16, columns in order.
 *   Q4_0, Q4_1  64 columns: [32 lanes][block][row half] words; scales f16 [8 g][block][row half]; Q4_1: minimums likewise.
 *   Q8_0        32 columns: [32 lanes][row half][depth] words, each byte + 128; scales f16 [8 g][row half].
 *   F8          128 columns: 4 blocks of [32 lanes][row half][depth] words. Scales: struct quant_segment.
 *   Q4_K        256 columns: 4 chunks of [32 lanes][block][row half] words, chunk i holding sub-blocks i and i + 4;
 *               then for each lane the 6-bit scales and minimums of sub-blocks t and t + 4, rows g and g + 8: a word and a half
 *               word, see quant_pack.cu;
 *               then (d, dmin) [8 g][row half].
 *   Q6_K        256 columns: 4 chunks of nibbles as before, chunk i holding sub-blocks 2i and 2i + 1;
 *               4 chunks of [32 lanes][block] words of the upper two bits of both rows;
 *               scales [32 lanes][row half][block][depth] bytes + 128, lane t those of chunk t;
 *               d f16 [8 g][row half]. */
#ifndef KERNELS_CUDA_QUANT_CUH
#define KERNELS_CUDA_QUANT_CUH

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>

#include "kernels/kn.h"

#define QUANT_STRIP_ROWS 16
#define QUANT_SEGMENTS_MAX 4 /* q, k and v, and one to spare */
#define QUANT_FEW_ROWS_MAX 16 /* rows of activations that one pass over the weights serves: two tensor core tiles */
#define QUANT_SUPER_COLS 256 /* block of the K forms */
#define QUANT_WEIGHTS_BYTES ((size_t)64 << 20) /* guess: part of a matrix as fp16; large enough that its products fill the GPU */

enum pack_form : int;

enum quant_form { QUANT_Q4_0, QUANT_Q4_1, QUANT_Q8_0, QUANT_F8, QUANT_Q4_K, QUANT_Q6_K };

__host__ __device__ constexpr int quant_unit_cols(int form)
{
	return form == QUANT_Q4_K || form == QUANT_Q6_K ? QUANT_SUPER_COLS : form == QUANT_F8 ? 128 : form == QUANT_Q8_0 ? 32 : 64;
}

__host__ __device__ constexpr int quant_unit_bytes(int form)
{
	return form == QUANT_Q4_K    ? 16 * 144
		: form == QUANT_Q6_K ? 16 * 210
		: form == QUANT_F8   ? 16 * 128
		: form == QUANT_Q8_0 ? 16 * 34
		: form == QUANT_Q4_1 ? 16 * 40
				     : 16 * 36;
}

/* Units that a warp fetches at a time: 128 columns, or the 256 of the K forms. */
__host__ __device__ constexpr int quant_stage_units(int form)
{
	return form == QUANT_Q4_K || form == QUANT_Q6_K ? 1 : 128 / quant_unit_cols(form);
}

/* Bytes of a stage in shared memory, where 8-bit floats have their factor beside them. */
__host__ __device__ constexpr int quant_stage_bytes(int form)
{
	return quant_stage_units(form) * quant_unit_bytes(form) + (form == QUANT_F8 ? 16 : 0);
}

/* Strips of one slice, or of neighbouring slices of one form that fill whole strips. Rows are those of the matrix. Where all
 * segments have one form, each of the three arrays goes on from a segment to the next. */
struct quant_segment {
	const uint8_t *units; /* [n_strips][n_units] */
	const float *unit_scales; /* F8 only: [n_strips][n_units] factor of the strip's 16 rows in the unit's columns */
	const float *row_scales; /* F8 only: [16 * n_strips] */
	int32_t form, strip_begin, n_strips, n_units;
	int32_t row_begin, rows;
};

struct quant_layout {
	int32_t n_segments, n_strips;
	int32_t granule_cols; /* multiple of every segment's unit */
	int32_t stage_bytes; /* of the largest stage */
	struct quant_segment segments[QUANT_SEGMENTS_MAX]; /* unused ones begin at INT32_MAX */
};

/* Device memory of the backend for such weights. */
struct quant_workspace {
	void *weights; /* QUANT_WEIGHTS_BYTES: stored rows on their way in, and fp16 copies for products of many rows */
	void *panel; /* activations of few rows: quant_panel.cuh */
	size_t shared_bytes_max; /* of a block */
	float *row_scales; /* [QUANT_FEW_ROWS_MAX] what a row of the panel is to be multiplied by */
};

/* Segment that holds a strip. The loop's bounds are fixed, so that it becomes selections. */
static __host__ __device__ inline struct quant_segment quant_segment_of(const struct quant_layout *layout, int strip)
{
	struct quant_segment segment = layout->segments[0];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
	for (int i = 1; i < QUANT_SEGMENTS_MAX; i++)
		if (strip >= layout->segments[i].strip_begin)
			segment = layout->segments[i];
	return segment;
}

/* Lays slices out; pointers in *out are offsets from NULL. False when the slices are no such weights, or cut in a way that this
 * layout cannot hold (then they are kept as fp16): plain types, more than QUANT_SEGMENTS_MAX, F8 scales whose blocks the
 * slice cuts through. *bytes is what the device memory holds. */
bool quant_lay_out(const struct kn_slice *slices, size_t n_slices, struct quant_layout *out, uint64_t *bytes);

/* Uploads slices into matrix->data, already allocated, and completes matrix->quant. */
enum status quant_upload(
	struct kn_backend *backend, const struct kn_slice *slices, size_t n_slices, struct kn_matrix *matrix, struct err *err);

/* Device memory of the backend's own for such weights: activations of few rows, a part of a matrix as fp16. */
uint64_t quant_workspace_bytes(const struct kn_options *options);

enum status quant_init(struct kn_backend *backend, const struct kn_options *options, struct err *err);
void quant_release(struct kn_backend *backend);

cudaError_t quant_product_init(struct kn_backend *backend);
/* Product of rows first_row to first_row + n_rows, at most QUANT_FEW_ROWS_MAX. Activations are rounded to 11 bits relative to the
 * largest of the row; one row to 16 bits of the largest of each warp's slice of it, or for 8-bit floats to 11. reader_form: of y,
 * PACK_F32 unless another matrix reads it. */
enum status quant_product(struct kn_backend *backend, const struct kn_matmul *args, int first_row, int n_rows,
	enum pack_form reader_form, struct err *err);

/* matmul and embed for matrices of PACK_QUANT, any number of rows. */
enum status kn_cuda_quant_matmul(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err);
enum status kn_cuda_quant_embed(struct kn_backend *backend, const struct kn_matrix *table, const int32_t *ids, int n_rows,
	float *out, int64_t out_stride, struct err *err);

#endif
