/* The yardstick for bench_step: the GEMM library alone on the matrices of a public shape, bf16 in and out, one CUDA graph a step,
 * no attention, no norms, nothing between the products. For each matrix the fastest of the algorithms that the library proposes.
 * usage: bench_gemms SHAPE [steps] [--rows N] [--json FILE]   SHAPE: 1b, 8b; N: that number of rows alone. A chip that its
 * power limits is slower in a long run than in a short one, so what a server does for seconds is compared with as many steps. */
#include <stdio.h>
#include <string.h>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "tests/support/bench_options.h"

#define ROWS_MAX 4096
#define CANDIDATES 8
#define WORKSPACE_BYTES ((size_t)32 << 20)
#define PRODUCTS 5 /* four of a layer, and the output head */
#define LAYERS_MAX 32
#define TRIALS 5 /* of each candidate, after one more; the fastest counts */

struct product {
	const char *name;
	int rows, cols;
};

struct shape {
	const char *name;
	int layers;
	struct product products[PRODUCTS]; /* the head last */
};

static const struct shape shapes[] = {
	{"1b", 16,
		{{"qkv", 3072, 2048}, {"o", 2048, 2048}, {"gate_up", 16384, 2048}, {"down", 2048, 8192}, {"head", 128256, 2048}}},
	{"8b", 32,
		{{"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}, {"head", 128256, 4096}}},
};

struct bench {
	const struct shape *shape;
	cublasLtHandle_t blas;
	cublasLtMatmulDesc_t operation;
	cudaStream_t stream;
	cudaEvent_t begin, end;
	void *workspace, *x, *y;
	void *w[PRODUCTS][LAYERS_MAX];
};

/* One product with some number of rows. */
struct call {
	cublasLtMatrixLayout_t w, x, y;
	cublasLtMatmulAlgo_t algorithm;
};

static void must(cudaError_t error, const char *what)
{
	if (error != cudaSuccess) {
		fprintf(stderr, "bench_gemms: %s: %s\n", what, cudaGetErrorString(error));
		ASSERT(!"a CUDA call failed");
	}
}

static void must_blas(cublasStatus_t status, const char *what)
{
	if (status != CUBLAS_STATUS_SUCCESS) {
		fprintf(stderr, "bench_gemms: %s: %s\n", what, cublasLtGetStatusString(status));
		ASSERT(!"a call of the GEMM library failed");
	}
}

static int copies_of(const struct bench *b, int product)
{
	return product == PRODUCTS - 1 ? 1 : b->shape->layers;
}

/* The same bf16 noise as bench_step's, never zeros, which some chips multiply faster. */
static void *filled(size_t count)
{
	void *out;
	uint16_t *values = mem_calloc(count, sizeof *values);
	for (size_t i = 0; i < count; i++) {
		uint32_t bits = (uint32_t)(hash64_mix(i) & 0x8000007fu);
		values[i] = (uint16_t)((bits >> 16 & 0x8000) | 0x3c00 | (bits & 0x7f));
	}
	must(cudaMalloc(&out, count * 2), "device memory");
	must(cudaMemcpy(out, values, count * 2, cudaMemcpyHostToDevice), "copy");
	mem_free(values);
	return out;
}

static void create(struct bench *b)
{
	cublasOperation_t transposed = CUBLAS_OP_T;
	size_t widest = 0;
	must(cudaStreamCreate(&b->stream), "stream");
	must(cudaEventCreate(&b->begin), "event");
	must(cudaEventCreate(&b->end), "event");
	must_blas(cublasLtCreate(&b->blas), "library");
	must_blas(cublasLtMatmulDescCreate(&b->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
	must_blas(cublasLtMatmulDescSetAttribute(b->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
		"operation");
	must(cudaMalloc(&b->workspace, WORKSPACE_BYTES), "workspace");
	for (int p = 0; p < PRODUCTS; p++) {
		size_t count = (size_t)b->shape->products[p].rows * (size_t)b->shape->products[p].cols;
		b->w[p][0] = filled(count);
		for (int i = 1; i < copies_of(b, p); i++) {
			must(cudaMalloc(&b->w[p][i], count * 2), "weights");
			must(cudaMemcpy(b->w[p][i], b->w[p][0], count * 2, cudaMemcpyDeviceToDevice), "copy");
		}
		if (p + 1 < PRODUCTS && (size_t)b->shape->products[p].rows > widest)
			widest = (size_t)b->shape->products[p].rows;
	}
	b->x = filled(ROWS_MAX * widest);
	must(cudaMalloc(&b->y, ROWS_MAX * widest * 2), "output");
}

static cublasStatus_t enqueue(struct bench *b, const struct call *call, const void *w)
{
	const float one = 1.0f, zero = 0.0f;
	return cublasLtMatmul(b->blas, b->operation, &one, w, call->w, b->x, call->x, &zero, b->y, call->y, b->y, call->y,
		&call->algorithm, b->workspace, WORKSPACE_BYTES, b->stream);
}

static float milliseconds(struct bench *b, const struct call *call, int product)
{
	float best = 1e30f, now;
	for (int i = 0; i <= TRIALS; i++) {
		must(cudaEventRecord(b->begin, b->stream), "event");
		for (int k = 0; k < copies_of(b, product) && k < 8; k++)
			if (enqueue(b, call, b->w[product][k]) != CUBLAS_STATUS_SUCCESS)
				return 1e30f;
		must(cudaEventRecord(b->end, b->stream), "event");
		must(cudaStreamSynchronize(b->stream), "product");
		must(cudaEventElapsedTime(&now, b->begin, b->end), "event");
		best = i > 0 && now < best ? now : best;
	}
	return best;
}

static void choose(struct bench *b, int product, int n_rows, struct call *out)
{
	const struct product *p = &b->shape->products[product];
	cublasLtMatmulPreference_t preference;
	cublasLtMatmulHeuristicResult_t results[CANDIDATES];
	size_t workspace = WORKSPACE_BYTES;
	int found = 0;
	float best = 2e30f;
	must_blas(cublasLtMatrixLayoutCreate(&out->w, CUDA_R_16BF, (uint64_t)p->cols, (uint64_t)p->rows, p->cols), "layout");
	must_blas(cublasLtMatrixLayoutCreate(&out->x, CUDA_R_16BF, (uint64_t)p->cols, (uint64_t)n_rows, p->cols), "layout");
	must_blas(cublasLtMatrixLayoutCreate(&out->y, CUDA_R_16BF, (uint64_t)p->rows, (uint64_t)n_rows, p->rows), "layout");
	must_blas(cublasLtMatmulPreferenceCreate(&preference), "preference");
	must_blas(cublasLtMatmulPreferenceSetAttribute(
			  preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
		"preference");
	must_blas(cublasLtMatmulAlgoGetHeuristic(
			  b->blas, b->operation, out->w, out->x, out->y, out->y, preference, CANDIDATES, results, &found),
		"heuristic");
	ASSERT(found > 0);
	for (int i = 0; i < found; i++) {
		struct call candidate = *out;
		candidate.algorithm = results[i].algo;
		float ms = milliseconds(b, &candidate, product);
		if (ms < best) {
			best = ms;
			out->algorithm = candidate.algorithm;
		}
	}
	cublasLtMatmulPreferenceDestroy(preference);
}

static void enqueue_step(struct bench *b, const struct call *calls, bool head)
{
	for (int layer = 0; layer < b->shape->layers; layer++)
		for (int p = 0; p + 1 < PRODUCTS; p++)
			must_blas(enqueue(b, &calls[p], b->w[p][layer]), "product");
	if (head)
		must_blas(enqueue(b, &calls[PRODUCTS - 1], b->w[PRODUCTS - 1][0]), "product");
}

/* Whole steps of n_rows; in a prefill the head is left out, one row of it hardly counts. */
static void bench_rows(struct bench *b, int n_rows, int steps, struct json *results)
{
	struct call calls[PRODUCTS] = {0};
	cudaGraph_t graph;
	cudaGraphExec_t executable;
	float ms = 0.0f;
	bool head = n_rows <= 128;
	for (int p = 0; p < PRODUCTS - !head; p++)
		choose(b, p, n_rows, &calls[p]);
	must(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), "capture");
	enqueue_step(b, calls, head);
	must(cudaStreamEndCapture(b->stream, &graph), "capture");
	must(cudaGraphInstantiate(&executable, graph, 0), "graph");
	for (int i = 0; i < steps + 3; i++) {
		if (i == 3)
			must(cudaEventRecord(b->begin, b->stream), "event");
		must(cudaGraphLaunch(executable, b->stream), "graph");
	}
	must(cudaEventRecord(b->end, b->stream), "event");
	must(cudaStreamSynchronize(b->stream), "step");
	must(cudaEventElapsedTime(&ms, b->begin, b->end), "event");
	double us = (double)ms * 1e3 / steps;
	printf("%-4s products alone, rows %4d  %9.1f us  %9.1f tok/s\n", b->shape->name, n_rows, us, n_rows * 1e6 / us);
	struct json *row = json_new_object();
	json_set(row, "what", json_new_string(head ? "products alone" : "products alone, no head"));
	json_set(row, "rows", json_new_integer(n_rows));
	json_set(row, "steps", json_new_integer(steps));
	json_set(row, "mean_us", json_new_number(us));
	json_set(row, "tokens_per_s", json_new_number(n_rows * 1e6 / us));
	json_append(results, row);
	cudaGraphExecDestroy(executable);
	cudaGraphDestroy(graph);
	for (int p = 0; p < PRODUCTS - !head; p++) {
		cublasLtMatrixLayoutDestroy(calls[p].w);
		cublasLtMatrixLayoutDestroy(calls[p].x);
		cublasLtMatrixLayoutDestroy(calls[p].y);
	}
	fflush(stdout);
}

int main(int argc, char **argv)
{
	long long steps = 50;
	struct bench_options options;
	bool good = bench_options_take(&argc, argv, ROWS_MAX, &options);
	struct bench b = {0};
	for (size_t i = 0; argc > 1 && i < sizeof shapes / sizeof shapes[0]; i++)
		if (text_equal(argv[1], shapes[i].name))
			b.shape = &shapes[i];
	if (!good || !b.shape || argc > 3 || (argc > 2 && !text_to_i64(argv[2], &steps)) || steps < 1) {
		fprintf(stderr, "usage: bench_gemms 1b|8b [steps] [--rows N] [--json FILE]\n");
		return 2;
	}
	create(&b);
	struct json *results = json_new_array();
	static const int rows[] = {1, 8, 16, 32, 64, 128, 512, 4096};
	if (options.rows)
		bench_rows(&b, (int)options.rows, (int)steps, results);
	for (size_t i = 0; !options.rows && i < sizeof rows / sizeof rows[0]; i++)
		bench_rows(&b, rows[i], rows[i] > 128 ? 5 : (int)steps, results);
	enum status status = STATUS_OK;
	if (options.json_path) {
		struct err err = {0};
		struct text text = {0};
		json_write(results, JSON_STYLE_PRETTY, &text);
		status = file_write_atomic(options.json_path, text_str(&text), text.len, &err);
		if (status)
			fprintf(stderr, "bench_gemms: %s\n", err.text);
		text_release(&text);
	}
	json_free(results);
	return status ? 1 : 0;
}
