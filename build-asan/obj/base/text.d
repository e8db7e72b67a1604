build-asan/obj/base/text.o: base/text.c base/text.h base/err.h \
 base/status.h base/mem.h
base/text.h:
base/err.h:
base/status.h:
base/mem.h:
