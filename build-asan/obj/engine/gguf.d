build-asan/obj/engine/gguf.o: engine/gguf.c engine/gguf.h base/err.h \
 base/status.h base/file.h base/text.h kernels/dtype.h base/hash.h \
 base/mem.h base/random.h base/utf8.h engine/gguf_types.h
engine/gguf.h:
base/err.h:
base/status.h:
base/file.h:
base/text.h:
kernels/dtype.h:
base/hash.h:
base/mem.h:
base/random.h:
base/utf8.h:
engine/gguf_types.h:
