// MPI's types and operations as those of Annulus.
//
// Threads: any.
#pragma once

#include <annulus.h>

#include <cstddef>

#include "frameworks/mpi/abi.h"

namespace annulus_mpi {

enum class Numbers {
  kNone,    // No arithmetic.
  kPlain,   // Annulus has the type.
  kSigned,  // 16-bit integers, which go through 32 bits: sums and products wrap around to the same bits.
  kUnsigned,
  kComplex,  // Pairs of floats.
};

struct ElementType {
  size_t bytes;
  Numbers numbers;
  annulus_type_t type;  // That does the arithmetic.
};

// Throws Error for a handle that is no type, or one that is not a number or byte of C.
ElementType ElementTypeOf(Handle datatype);

// The bytes of `count` elements. Throws Error for a negative count.
size_t BytesOf(int count, Handle datatype);

// Throws Error for other operations than sum, product, minimum and maximum.
annulus_op_t OperationOf(Handle op);

}  // namespace annulus_mpi
