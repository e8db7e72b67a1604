/* The published types of GGUF: value types, and how each tensor type lies in a file. Block sizes: ggml's ggml-common.h,
 * the same numbers as gguf-py's GGML_QUANT_SIZES. */
#include "engine/gguf_types.h"

static const struct {
	uint32_t id;
	struct gguf_tensor_type type;
} tensor_types[] = {
	{0, {"F32", 1, 4}},
	{1, {"F16", 1, 2}},
	{2, {"Q4_0", 32, 18}},
	{3, {"Q4_1", 32, 20}},
	{6, {"Q5_0", 32, 22}},
	{7, {"Q5_1", 32, 24}},
	{8, {"Q8_0", 32, 34}},
	{9, {"Q8_1", 32, 40}},
	{10, {"Q2_K", 256, 84}},
	{11, {"Q3_K", 256, 110}},
	{12, {"Q4_K", 256, 144}},
	{13, {"Q5_K", 256, 176}},
	{14, {"Q6_K", 256, 210}},
	{15, {"Q8_K", 256, 292}},
	{16, {"IQ2_XXS", 256, 66}},
	{17, {"IQ2_XS", 256, 74}},
	{18, {"IQ3_XXS", 256, 98}},
	{19, {"IQ1_S", 256, 50}},
	{20, {"IQ4_NL", 32, 18}},
	{21, {"IQ3_S", 256, 110}},
	{22, {"IQ2_S", 256, 82}},
	{23, {"IQ4_XS", 256, 136}},
	{24, {"I8", 1, 1}},
	{25, {"I16", 1, 2}},
	{26, {"I32", 1, 4}},
	{27, {"I64", 1, 8}},
	{28, {"F64", 1, 8}},
	{29, {"IQ1_M", 256, 56}},
	{30, {"BF16", 1, 2}},
	{34, {"TQ1_0", 256, 54}},
	{35, {"TQ2_0", 256, 66}},
	{39, {"MXFP4", 32, 17}},
	{40, {"NVFP4", 64, 36}},
	{41, {"Q1_0", 128, 18}},
};

bool gguf_tensor_type(uint32_t id, struct gguf_tensor_type *out)
{
	for (size_t i = 0; i < sizeof(tensor_types) / sizeof(tensor_types[0]); i++) {
		if (tensor_types[i].id == id) {
			*out = tensor_types[i].type;
			return true;
		}
	}
	return false;
}

const char *gguf_tensor_type_name(uint32_t id)
{
	struct gguf_tensor_type type;

	if (id == DTYPE_F8_E4M3)
		return dtype_name(DTYPE_F8_E4M3); /* of models made up */
	return gguf_tensor_type(id, &type) ? type.name : "unknown";
}

const char *gguf_type_name(enum gguf_type type)
{
	static const char *const names[] = {
		"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

	return (unsigned)type < sizeof(names) / sizeof(names[0]) ? names[type] : "unknown";
}

size_t gguf_type_bytes(enum gguf_type type)
{
	switch (type) {
	case GGUF_U8:
	case GGUF_I8:
	case GGUF_BOOL:
		return 1;
	case GGUF_U16:
	case GGUF_I16:
		return 2;
	case GGUF_U32:
	case GGUF_I32:
	case GGUF_F32:
		return 4;
	case GGUF_U64:
	case GGUF_I64:
	case GGUF_F64:
		return 8;
	case GGUF_STRING:
	case GGUF_ARRAY:
		break;
	}
	return 0;
}
