// What a framework tells the wrapper, and does for it: pyannulus.jax does so by ctypes, and its struct must be the
// same.
//
// Threads: none; a type only.
#pragma once

#include <annulus.h>

#include <cstddef>
#include <cstdint>

// Who this process is, how it meets the others, and when its work is done, where a framework knows. Given before
// MPI_Init.
struct annulus_mpi_meeting {
  size_t struct_bytes;
  // Called by MPI_Init. Returns 0; else it failed, and `why`, which has room for `room` bytes, says why. NULL = the
  // environment or a launcher says who this process is, and the store is not used.
  int32_t (*place)(int32_t* rank, int32_t* size, char* why, size_t room);
  annulus_store_t store;
  int64_t timeout_ms;          // 0 = as the environment says.
  int64_t connect_timeout_ms;  // Likewise.
  // Called by MPI_Finalize before it leaves, to wait for work that has calls to make yet. Returns 0; else the work of
  // all processes is aborted at once, for the reason in `why`. NULL = there is no such work.
  int32_t (*before_leaving)(char* why, size_t room);
  // How long MPI_Finalize waits for calls under way before it aborts them. 0 = 60000.
  int64_t leave_timeout_ms;
  // The number of a signal that came during a callback and that the callback has used up; MPI_Init raises it again when
  // it ends. 0 = none. NULL is allowed.
  int32_t* taken_signal;
};
