build-asan/obj/base/mem.o: base/mem.c base/mem.h base/err.h base/status.h
base/mem.h:
base/err.h:
base/status.h:
