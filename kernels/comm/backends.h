/* The CPU backends by name. Private to kernels/comm. */
#ifndef KERNELS_COMM_BACKENDS_H
#define KERNELS_COMM_BACKENDS_H

#include "kernels/comm/comm.h"

extern const struct comm_ops comm_ref_socket, comm_shm_flag, comm_shm_lamport, comm_shm_2shot;

#endif
