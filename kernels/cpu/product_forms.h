/* One product for each packed form, the same for every vector width. product_avx2.c and product_avx512.c include it after they
 * define
 *   PRODUCT_TABLE                  the name of the table
 *   multiply_quantized(p, form)
 *   multiply_plain(p, form) */

static void multiply_f32(const struct micro_product *p)
{
	multiply_plain(p, PANEL_F32);
}

static void multiply_f16(const struct micro_product *p)
{
	multiply_plain(p, PANEL_F16);
}

static void multiply_bf16(const struct micro_product *p)
{
	multiply_plain(p, PANEL_BF16);
}

static void multiply_q4_0(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q4_0);
}

static void multiply_q4_1(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q4_1);
}

static void multiply_q4_k(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q4_K);
}

static void multiply_q8_0(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q8_0);
}

static void multiply_q6_k(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q6_K);
}

micro_multiply *const PRODUCT_TABLE[PANEL_FORMS] = {
	[PANEL_F32] = multiply_f32,
	[PANEL_F16] = multiply_f16,
	[PANEL_BF16] = multiply_bf16,
	[PANEL_Q4_0] = multiply_q4_0,
	[PANEL_Q4_1] = multiply_q4_1,
	[PANEL_Q4_K] = multiply_q4_k,
	[PANEL_Q8_0] = multiply_q8_0,
	[PANEL_Q6_K] = multiply_q6_k,
};
