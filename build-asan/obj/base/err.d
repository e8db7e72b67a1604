build-asan/obj/base/err.o: base/err.c base/err.h base/status.h
base/err.h:
base/status.h:
