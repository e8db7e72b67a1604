build-asan/obj/base/options.o: base/options.c base/options.h base/err.h \
 base/status.h base/text.h
base/options.h:
base/err.h:
base/status.h:
base/text.h:
