build-asan/obj/base/utf8.o: base/utf8.c base/utf8.h base/text.h
base/utf8.h:
base/text.h:
