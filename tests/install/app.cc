// A user's program in C++, outside the tree: sums a vector over the ranks, checks it, prints "2 ranks: 3". Threads:
// one.
#include <annulus.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

// What failed, in Annulus's words.
std::string Message() {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  return annulus_last_error(&error) == ANNULUS_OK ? error.message : "";
}

int main() {
  annulus_comm_t* created = nullptr;
  if (annulus_comm_create(nullptr, &created) != ANNULUS_OK) {
    std::cerr << Message() << "\n";
    return 2;
  }
  const std::unique_ptr<annulus_comm_t, decltype(&annulus_comm_destroy)> comm(created, annulus_comm_destroy);
  int rank = -1, size = 0;
  if (annulus_comm_rank(comm.get(), &rank) != ANNULUS_OK || annulus_comm_size(comm.get(), &size) != ANNULUS_OK)
    return 3;
  std::vector<double> values(100'000, rank + 1);
  if (annulus_allreduce(comm.get(), values.data(), values.data(), values.size(), ANNULUS_FLOAT64, ANNULUS_SUM) !=
      ANNULUS_OK) {
    return 4;
  }
  const double sum = size * (size + 1) / 2;
  if (std::count(values.begin(), values.end(), sum) != static_cast<std::ptrdiff_t>(values.size())) return 5;
  std::cout << size << " ranks: " << sum << "\n";
}
