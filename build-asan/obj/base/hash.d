build-asan/obj/base/hash.o: base/hash.c base/hash.h base/err.h \
 base/status.h base/file.h base/text.h
base/hash.h:
base/err.h:
base/status.h:
base/file.h:
base/text.h:
