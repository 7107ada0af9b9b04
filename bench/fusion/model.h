// Model: a neural network as a list of parameter tensors, read from a text file.
//
// A file has one line per tensor, "NAME DIMS" with an x between dimensions, such as "fc.weight 1000x2048", in the order
// of the forward pass. Empty lines and what follows # say nothing.
//
// Threads: plain functions and values.
#pragma once

#include <cstddef>
#include <istream>
#include <string>
#include <vector>

#include "base/status.h"

namespace annulus::fusion {

struct Tensor {
  std::string name;
  size_t elements = 0;
};

// Reads a model; an error names `source` and the line at fault.
Status ReadModel(std::istream& in, const std::string& source, std::vector<Tensor>* tensors);

size_t TotalElements(const std::vector<Tensor>& tensors);

// The tensors, in order, that together have at most `elements`: one that no longer fits is left out, later ones that
// do are not.
std::vector<Tensor> Cut(const std::vector<Tensor>& tensors, size_t elements);

}  // namespace annulus::fusion
