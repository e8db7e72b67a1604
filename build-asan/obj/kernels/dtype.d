build-asan/obj/kernels/dtype.o: kernels/dtype.c kernels/dtype.h
kernels/dtype.h:
