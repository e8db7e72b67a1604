build-asan/obj/base/json_locate.o: base/json_locate.c base/json.h \
 base/err.h base/status.h base/text.h
base/json.h:
base/err.h:
base/status.h:
base/text.h:
