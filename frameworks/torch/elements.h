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
  annulus_op_t op = ANNULUS_SUM;  // Not used where `is_scaled`.
  bool is_scaled = false;         // A sum to which each rank contributes its elements times `factor`.
  double factor = 1;
};

// Errors: throws where there is no such reduction.
Reduction ReductionOf(at::ScalarType type, const c10d::ReduceOp& op);

}  // namespace annulus_torch
