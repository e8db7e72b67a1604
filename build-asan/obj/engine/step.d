build-asan/obj/engine/step.o: engine/step.c engine/step.h
engine/step.h:
