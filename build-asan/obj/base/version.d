build-asan/obj/base/version.o: base/version.c base/version.h
base/version.h:
