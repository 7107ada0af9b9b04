// MPI's types and operations as those of Annulus.
//
// Threads: any.
#pragma once

#include <annulus.h>

#include <cstddef>

#include "frameworks/mpi/abi.h"

namespace annulus_mpi {

// Bytes and characters are ANNULUS_UINT8. Throws Error for a handle that is no type, or not one of C.
annulus_type_t TypeOf(Handle datatype);

// The bytes of `count` elements. Throws Error for a negative count.
size_t BytesOf(int count, Handle datatype);

struct Reduction {
  annulus_type_t type;
  annulus_op_t op;
};

// Throws Error for what cannot be reduced: an operation that Annulus does not have, or does not have of that type.
Reduction ReductionOf(Handle datatype, Handle op);

}  // namespace annulus_mpi
