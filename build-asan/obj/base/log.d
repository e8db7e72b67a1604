build-asan/obj/base/log.o: base/log.c base/log.h base/clock.h
base/log.h:
base/clock.h:
