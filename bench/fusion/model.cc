// Reading models.
//
// Threads: see model.h.
#include "bench/fusion/model.h"

#include <charconv>
#include <sstream>
#include <string_view>

namespace annulus::fusion {
namespace {

// Most elements of a tensor, and of a model: far more than one machine holds, and no product below overflows.
constexpr size_t kMaxElements = size_t{1} << 40;

// False unless `text` is one or more numbers from 1 on with an x between them.
bool ParseDims(std::string_view text, size_t* elements) {
  *elements = 1;
  for (const char *at = text.data(), *const end = at + text.size();; ++at) {
    size_t dim = 0;
    const auto [behind, error] = std::from_chars(at, end, dim);
    if (error != std::errc() || dim == 0 || dim > kMaxElements / *elements) return false;
    *elements *= dim;
    if (behind == end) return true;
    if (*behind != 'x') return false;
    at = behind;
  }
}

}  // namespace

Status ReadModel(std::istream& in, const std::string& source, std::vector<Tensor>* tensors) {
  std::vector<Tensor> read;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, dims, more;
    if (!(words >> name)) continue;
    Tensor tensor{name, 0};
    if (!(words >> dims) || words >> more || !ParseDims(dims, &tensor.elements) ||
        TotalElements(read) + tensor.elements > kMaxElements) {
      return Status::Invalid(source + ":" + std::to_string(number) +
                             ": not a tensor; write its name and its dimensions, such as fc.weight 1000x2048");
    }
    read.push_back(std::move(tensor));
  }
  if (read.empty()) return Status::Invalid(source + ": no tensors, or no such file");
  *tensors = std::move(read);
  return Status();
}

size_t TotalElements(const std::vector<Tensor>& tensors) {
  size_t total = 0;
  for (const Tensor& tensor : tensors) total += tensor.elements;
  return total;
}

std::vector<Tensor> Cut(const std::vector<Tensor>& tensors, size_t elements) {
  std::vector<Tensor> kept;
  for (const Tensor& tensor : tensors) {
    if (tensor.elements > elements) continue;
    elements -= tensor.elements;
    kept.push_back(tensor);
  }
  return kept;
}

}  // namespace annulus::fusion
