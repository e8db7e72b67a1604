build-asan/obj/base/wait_word.o: base/wait_word.c base/wait_word.h \
 base/wait.h
base/wait_word.h:
base/wait.h:
