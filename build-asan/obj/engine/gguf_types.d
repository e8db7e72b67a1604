build-asan/obj/engine/gguf_types.o: engine/gguf_types.c \
 engine/gguf_types.h engine/gguf.h base/err.h base/status.h base/file.h \
 base/text.h kernels/dtype.h
engine/gguf_types.h:
engine/gguf.h:
base/err.h:
base/status.h:
base/file.h:
base/text.h:
kernels/dtype.h:
