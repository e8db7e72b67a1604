/* Weights in panels: what kn_matrix is on the CPU. Layout of a panel: kernels/cpu/micro.h. */
#ifndef KERNELS_CPU_PACK_H
#define KERNELS_CPU_PACK_H

#include "kernels/cpu/micro.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/store.h"
#include "kernels/kn.h"

/* Rows of one slice, in one packed form; the last panel is filled up with zero rows. */
struct segment {
	enum panel_form form;
	int64_t row_begin, rows; /* rows of the matrix */
	int64_t panel_begin, n_panels;
	int64_t panel_bytes;
	const uint8_t *panels;
};

struct kn_matrix {
	int64_t rows, cols, n_panels;
	int64_t paired_panels; /* panels of each half, when the halves can be gate and up of KN_SWIGLU; otherwise 0 */
	bool has_quantized, has_plain;
	size_t n_segments;
	uint64_t bytes; /* of data, what the matrix holds */
	uint8_t *data; /* owned, from the store */
	struct segment segments[];
};

/* Slices as in kn_ops.matrix_create. Bad slices are STATUS_INPUT, naming the slice. Work is spread over the pool;
 * memory comes from the store, to which pack_destroy gives it back. */
enum status pack_create(struct pool *pool, struct store *store, const struct kn_slice *slices, size_t n_slices,
	struct kn_matrix **out, struct err *err);
void pack_destroy(struct store *store, struct kn_matrix *matrix);

/* Bytes that pack_create would hold; 0 when the slices are bad. */
uint64_t pack_bytes_needed(const struct kn_slice *slices, size_t n_slices);

/* Row `row` as fp32 [cols], the same bits as dtype_dequantize gives. */
void pack_read_row(const struct kn_matrix *matrix, int64_t row, float *out);

/* True for forms that multiply quantised activations, false for those that multiply fp32 ones. */
bool pack_is_quantized(enum panel_form form);

/* Segment that holds panel `panel`. */
const struct segment *pack_segment_of_panel(const struct kn_matrix *matrix, int64_t panel);

#endif
