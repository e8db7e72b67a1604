build-asan/obj/base/json.o: base/json.c base/json.h base/err.h \
 base/status.h base/text.h base/mem.h base/utf8.h
base/json.h:
base/err.h:
base/status.h:
base/text.h:
base/mem.h:
base/utf8.h:
