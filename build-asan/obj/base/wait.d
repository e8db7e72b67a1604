build-asan/obj/base/wait.o: base/wait.c base/wait.h base/clock.h \
 base/file.h base/err.h base/status.h base/text.h
base/wait.h:
base/clock.h:
base/file.h:
base/err.h:
base/status.h:
base/text.h:
