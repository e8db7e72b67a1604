build-asan/obj/base/file.o: base/file.c base/file.h base/err.h \
 base/status.h base/text.h base/mem.h
base/file.h:
base/err.h:
base/status.h:
base/text.h:
base/mem.h:
