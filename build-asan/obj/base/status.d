build-asan/obj/base/status.o: base/status.c base/status.h
base/status.h:
