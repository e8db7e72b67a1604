build-asan/obj/engine/shard.o: engine/shard.c engine/model.h \
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
