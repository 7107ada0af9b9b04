// What MPItrampoline's binary interface (ABI 2.9) fixes: handles, the status, limits, and how a function is exported.
//
// Threads: none; types and constants only.
#pragma once

#include <cstddef>
#include <cstdint>

// Exported by its name, whatever the file's other symbols do.
#define ANNULUS_MPI_EXPORT extern "C" __attribute__((visibility("default")))

namespace annulus_mpi {

// Communicators, datatypes, operations, requests and all others. 0 is the null handle of each kind.
using Handle = uintptr_t;

// kSUM and so on, as the program sees them.
enum Constant : intptr_t {
#define CONSTANT(name, value) k##name = value,
#include "frameworks/mpi/constants.inc"
#undef CONSTANT
};

inline constexpr int kMaxErrorString = 1024;  // Size of the program's buffers, with the string's end.
inline constexpr int kMaxProcessorName = 256;
inline constexpr int kMaxLibraryVersion = 8192;

// The first 24 bytes are the implementation's.
struct Status {
  size_t bytes;  // Received.
  size_t unused[2];
  int source;
  int tag;
  int error;
};
static_assert(sizeof(Status) == 40 && offsetof(Status, source) == 24);

}  // namespace annulus_mpi
