build-asan/obj/tests/support/gguf_build.o: tests/support/gguf_build.c \
 tests/support/gguf_build.h base/text.h engine/gguf.h base/err.h \
 base/status.h base/file.h kernels/dtype.h
tests/support/gguf_build.h:
base/text.h:
engine/gguf.h:
base/err.h:
base/status.h:
base/file.h:
kernels/dtype.h:
