build-asan/obj/tests/engine/test_gguf.o: tests/engine/test_gguf.c \
 base/clock.h base/mem.h base/err.h base/status.h engine/gguf.h \
 base/file.h base/text.h kernels/dtype.h tests/support/gguf_build.h
base/clock.h:
base/mem.h:
base/err.h:
base/status.h:
engine/gguf.h:
base/file.h:
base/text.h:
kernels/dtype.h:
tests/support/gguf_build.h:
