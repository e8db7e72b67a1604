build-asan/obj/base/random.o: base/random.c base/random.h base/clock.h \
 base/hash.h base/err.h base/status.h
base/random.h:
base/clock.h:
base/hash.h:
base/err.h:
base/status.h:
