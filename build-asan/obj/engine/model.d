build-asan/obj/engine/model.o: engine/model.c engine/model.h \
 engine/gguf.h base/err.h base/status.h base/file.h base/text.h \
 kernels/dtype.h kernels/kn.h
engine/model.h:
engine/gguf.h:
base/err.h:
base/status.h:
base/file.h:
base/text.h:
kernels/dtype.h:
kernels/kn.h:
