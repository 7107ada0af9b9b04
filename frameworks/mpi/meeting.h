// How a framework tells the wrapper who this process is: pyannulus.jax does so by ctypes, and its struct must be the
// same.
//
// Threads: none; a type only.
#pragma once

#include <annulus.h>

#include <cstddef>
#include <cstdint>

// Who this process is and how it meets the others, where a framework knows. Given before MPI_Init.
struct annulus_mpi_meeting {
  size_t struct_bytes;
  // Called by MPI_Init. Returns 0; else it failed, and `why`, which has room for `room` bytes, says why.
  int32_t (*place)(int32_t* rank, int32_t* size, char* why, size_t room);
  annulus_store_t store;
  int64_t timeout_ms;          // 0 = as the environment says.
  int64_t connect_timeout_ms;  // Likewise.
};
