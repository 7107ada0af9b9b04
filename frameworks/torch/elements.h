// Elements: PyTorch's types and reductions as Annulus's.
//
// Threads: plain functions.
#pragma once

#include <ATen/ATen.h>
#include <annulus.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace annulus_torch {

// Contiguous memory as Annulus is given it.
struct Elements {
  annulus_type_t type = ANNULUS_UINT8;
  size_t count = 0;
};

// The tensor's memory as bytes, for calls that only move them.
Elements BytesOf(const at::Tensor& tensor);

// What one of PyTorch's reductions is on a tensor of some type.
struct Reduction {
  annulus_type_t type = ANNULUS_FLOAT32;
  size_t per_element = 1;         // Annulus's elements in one of the tensor's.
  annulus_op_t op = ANNULUS_SUM;  // Not used where `bitwise` or `is_scaled`.
  int bitwise = -1;               // 0 and, 1 or, 2 exclusive or: an operation of the communicator's.
  bool is_scaled = false;         // A sum to which each rank contributes its elements times `factor`.
  double factor = 1;
  at::ScalarType through = at::kFloat;  // The type in which it is done; the tensor's own or a wider one.
};

// Errors: throws where there is no such reduction.
Reduction ReductionOf(at::ScalarType type, const c10d::ReduceOp& op);

}  // namespace annulus_torch
