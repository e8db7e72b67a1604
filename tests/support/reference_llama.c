/* Double-precision Llama by the book. Sources: RMSNorm arXiv 1910.07467, RoFormer 2104.09864, SwiGLU 2002.05202, GQA 2305.13245. */
#include "tests/support/reference_llama.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

struct reference {
	const struct source *source;
	const struct model_config *config;
	int n;
	double *x; /* [n][hidden] */
	double *q, *k, *v; /* [n][heads * head_dim] */
	double *normed, *wide; /* one row of scratch */
};

static double *product(const struct model_tensor *tensor, const double *x, double *y)
{
	int64_t rows = model_tensor_rows(tensor), cols = model_tensor_cols(tensor);
	float *weights = mem_calloc((size_t)(rows * cols), sizeof *weights);
	dtype_dequantize(tensor->dtype, tensor->data, weights, rows * cols);
	for (int64_t r = 0; r < rows; r++) {
		double sum = 0;
		for (int64_t c = 0; c < cols; c++)
			sum += (double)weights[r * cols + c] * x[c];
		y[r] = sum;
	}
	mem_free(weights);
	return y;
}

static void rms_norm(const struct model_tensor *tensor, double eps, const double *x, double *y)
{
	int64_t n = model_tensor_cols(tensor);
	float *weights = mem_calloc((size_t)n, sizeof *weights);
	dtype_dequantize(tensor->dtype, tensor->data, weights, n);
	double squares = 0;
	for (int64_t i = 0; i < n; i++)
		squares += x[i] * x[i];
	double scale = 1.0 / sqrt(squares / (double)n + eps);
	for (int64_t i = 0; i < n; i++)
		y[i] = x[i] * scale * (double)weights[i];
	mem_free(weights);
}

static void rotate(const struct model_config *config, double *head, int position)
{
	for (int i = 0; i < config->head_dim / 2; i++) {
		double frequency = pow(config->rope_base, -2.0 * i / config->head_dim) / config->rope_scale;
		if (config->has_rope_factors)
			frequency /= (double)config->rope_factors[i];
		double *first = config->rope_interleaved ? head + 2 * i : head + i;
		double *second = config->rope_interleaved ? first + 1 : first + config->head_dim / 2;
		double c = cos(position * frequency), s = sin(position * frequency), a = *first, b = *second;
		*first = a * c - b * s;
		*second = a * s + b * c;
	}
}

/* Output of one query head at position t into out[head_dim]. */
static void attend(const struct reference *r, int head, int t, double *out)
{
	const struct model_config *c = r->config;
	int d = c->head_dim, kv_head = head / (c->n_heads / c->n_kv_heads);
	const double *q = r->q + ((int64_t)t * c->n_heads + head) * d;
	double *scores = mem_calloc((size_t)t + 1, sizeof *scores);
	double most = -INFINITY, total = 0;
	for (int p = 0; p <= t; p++) {
		const double *k = r->k + ((int64_t)p * c->n_kv_heads + kv_head) * d;
		for (int i = 0; i < d; i++)
			scores[p] += q[i] * k[i];
		scores[p] /= sqrt(d);
		most = scores[p] > most ? scores[p] : most;
	}
	for (int p = 0; p <= t; p++)
		total += scores[p] = exp(scores[p] - most);
	memset(out, 0, (size_t)d * sizeof *out);
	for (int p = 0; p <= t; p++) {
		const double *v = r->v + ((int64_t)p * c->n_kv_heads + kv_head) * d;
		for (int i = 0; i < d; i++)
			out[i] += scores[p] / total * v[i];
	}
	mem_free(scores);
}

/* What the family does to the heads of q, k or v before rotation; tensors that it does not have are without data. */
static void adjust(
	const struct model_config *c, const struct model_tensor *bias, const struct model_tensor *norm, int n_heads, double *heads)
{
	int d = c->head_dim;
	if (bias->data) {
		float *values = mem_calloc((size_t)(n_heads * d), sizeof *values);
		dtype_dequantize(bias->dtype, bias->data, values, (int64_t)n_heads * d);
		for (int i = 0; i < n_heads * d; i++)
			heads[i] += (double)values[i];
		mem_free(values);
	}
	for (int head = 0; norm->data && head < n_heads; head++)
		rms_norm(norm, c->norm_eps, heads + head * d, heads + head * d);
}

static void run_layer(struct reference *r, int layer)
{
	const struct model_config *c = r->config;
	int64_t d = c->head_dim, q_width = c->n_heads * d, kv_width = c->n_kv_heads * d;
	struct model_layer tensors;
	model_layer_find(r->source, c, layer, &tensors);
	for (int t = 0; t < r->n; t++) {
		double *q = r->q + t * q_width, *k = r->k + t * kv_width;
		rms_norm(&tensors.attention_norm, c->norm_eps, r->x + (int64_t)t * c->hidden, r->normed);
		product(&tensors.q, r->normed, q);
		product(&tensors.k, r->normed, k);
		product(&tensors.v, r->normed, r->v + t * kv_width);
		adjust(c, &tensors.q_bias, &tensors.q_norm, c->n_heads, q);
		adjust(c, &tensors.k_bias, &tensors.k_norm, c->n_kv_heads, k);
		adjust(c, &tensors.v_bias, &(struct model_tensor){0}, c->n_kv_heads, r->v + t * kv_width);
		for (int head = 0; head < c->n_heads; head++)
			rotate(c, q + head * d, t);
		for (int head = 0; head < c->n_kv_heads; head++)
			rotate(c, k + head * d, t);
	}
	double *attended = mem_calloc((size_t)q_width, sizeof *attended);
	double *gate = mem_calloc((size_t)c->ffn, sizeof *gate), *up = mem_calloc((size_t)c->ffn, sizeof *up);
	for (int t = 0; t < r->n; t++) {
		double *x = r->x + (int64_t)t * c->hidden;
		for (int head = 0; head < c->n_heads; head++)
			attend(r, head, t, attended + head * d);
		product(&tensors.attention_output, attended, r->wide);
		for (int i = 0; i < c->hidden; i++)
			x[i] += r->wide[i];
		rms_norm(&tensors.ffn_norm, c->norm_eps, x, r->normed);
		product(&tensors.gate, r->normed, gate);
		product(&tensors.up, r->normed, up);
		for (int i = 0; i < c->ffn; i++)
			gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
		product(&tensors.down, gate, r->wide);
		for (int i = 0; i < c->hidden; i++)
			x[i] += r->wide[i];
	}
	mem_free(attended);
	mem_free(gate);
	mem_free(up);
}

void reference_llama_logits(
	const struct source *source, const struct model_config *config, const int32_t *tokens, int n, double *out)
{
	size_t rows = (size_t)n, d = (size_t)config->head_dim, hidden = (size_t)config->hidden;
	struct reference r = {
		.source = source,
		.config = config,
		.n = n,
		.x = mem_calloc(rows * hidden, sizeof(double)),
		.q = mem_calloc(rows * (size_t)config->n_heads * d, sizeof(double)),
		.k = mem_calloc(rows * (size_t)config->n_kv_heads * d, sizeof(double)),
		.v = mem_calloc(rows * (size_t)config->n_kv_heads * d, sizeof(double)),
		.normed = mem_calloc(hidden, sizeof(double)),
		.wide = mem_calloc(hidden, sizeof(double)),
	};
	struct model_ends ends;
	model_ends_find(source, config, &ends);
	float *row = mem_calloc(hidden, sizeof *row);
	uint64_t row_bytes;
	ASSERT(dtype_bytes(ends.embedding.dtype, config->hidden, &row_bytes));
	for (size_t t = 0; t < rows; t++) {
		dtype_dequantize(ends.embedding.dtype, (const char *)ends.embedding.data + (uint64_t)tokens[t] * row_bytes, row,
			config->hidden);
		for (size_t i = 0; i < hidden; i++)
			r.x[t * hidden + i] = (double)row[i];
	}
	for (int layer = 0; layer < config->n_layers; layer++)
		run_layer(&r, layer);
	for (size_t t = 0; t < rows; t++) {
		rms_norm(&ends.output_norm, config->norm_eps, r.x + t * hidden, r.normed);
		product(&ends.output, r.normed, out + t * (size_t)config->vocab);
	}
	mem_free(row);
	mem_free(r.x);
	mem_free(r.q);
	mem_free(r.k);
	mem_free(r.v);
	mem_free(r.normed);
	mem_free(r.wide);
}

double reference_relative_error(const float *a, const double *b, int64_t count)
{
	double difference = 0, size = 0;
	for (int64_t i = 0; i < count; i++) {
		difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
		size += b[i] * b[i];
	}
	return sqrt(difference / size);
}
