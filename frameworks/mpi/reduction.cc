#include "frameworks/mpi/reduction.h"

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>

#include "frameworks/mpi/error.h"

namespace annulus_mpi {
namespace {

template <typename Narrow, typename Wide>
std::vector<uint32_t> Widened(const void* values, size_t count) {
  std::vector<uint32_t> wide(count);
  const auto* const narrow = static_cast<const Narrow*>(values);
  for (size_t i = 0; i < count; ++i) wide[i] = static_cast<uint32_t>(static_cast<Wide>(narrow[i]));
  return wide;
}

// values[r * count + i] of each rank r, in the order of ranks.
template <typename Float>
void MultiplyAll(const std::vector<unsigned char>& values, void* products, size_t count, size_t nranks) {
  using Number = std::complex<Float>;
  const auto* const factors = reinterpret_cast<const Number*>(values.data());
  auto* const out = static_cast<Number*>(products);
  for (size_t i = 0; i < count; ++i) {
    Number product = factors[i];
    for (size_t rank = 1; rank < nranks; ++rank) product *= factors[rank * count + i];
    out[i] = product;
  }
}

}  // namespace

Reduction::Reduction(const Communicator& communicator, Handle datatype, Handle op)
    : communicator_(communicator), type_(ElementTypeOf(datatype)), op_(OperationOf(op)) {
  Require(type_.numbers != Numbers::kNone, kERR_OP, "bytes, characters and bools of MPI are no numbers to reduce");
  Require(type_.numbers != Numbers::kComplex || op_ == ANNULUS_SUM || op_ == ANNULUS_PROD, kERR_OP,
          "complex numbers have no order: MPI_SUM and MPI_PROD only");
}

void Reduction::Do(const void* send, size_t send_count, void* recv, size_t recv_count, const Plain& plain) const {
  const Communicator::Use use(communicator_);
  if (type_.numbers != Numbers::kSigned && type_.numbers != Numbers::kUnsigned) {
    communicator_.Check(plain(use.get(), send, recv));
    return;
  }
  const std::vector<uint32_t> wide = type_.numbers == Numbers::kSigned ? Widened<int16_t, int32_t>(send, send_count)
                                                                       : Widened<uint16_t, uint32_t>(send, send_count);
  std::vector<uint32_t> result(recv_count);
  communicator_.Check(plain(use.get(), wide.data(), result.data()));
  auto* const narrow = static_cast<uint16_t*>(recv);
  for (size_t i = 0; i < recv_count; ++i) narrow[i] = static_cast<uint16_t>(result[i]);
}

void Reduction::Multiply(const void* send, void* recv, size_t count) const {
  const Communicator::Use use(communicator_);
  const size_t bytes = count * type_.bytes;
  const auto nranks = static_cast<size_t>(communicator_.size());
  std::vector<unsigned char> all(bytes * nranks);
  communicator_.Check(annulus_allgather(use.get(), send, all.data(), bytes, ANNULUS_UINT8));
  if (type_.type == ANNULUS_FLOAT32) {
    MultiplyAll<float>(all, recv, count, nranks);
  } else {
    MultiplyAll<double>(all, recv, count, nranks);
  }
}

void Reduction::AllReduce(const void* send, void* recv, size_t count) const {
  if (is_complex_product()) return Multiply(send, recv, count);
  Do(send, count, recv, count, [&](annulus_comm_t* comm, const void* from, void* to) {
    return annulus_allreduce(comm, from, to, count * ratio(), type_.type, op_);
  });
}

void Reduction::Reduce(const void* send, void* recv, size_t count, int root) const {
  const bool is_root = communicator_.rank() == root;
  if (is_complex_product()) {
    std::vector<unsigned char> unused(is_root ? 0 : count * type_.bytes);
    return Multiply(send, is_root ? recv : unused.data(), count);
  }
  Do(send, count, recv, is_root ? count : 0, [&](annulus_comm_t* comm, const void* from, void* to) {
    return annulus_reduce(comm, from, to, count * ratio(), type_.type, op_, root);
  });
}

void Reduction::ReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts) const {
  const auto rank = static_cast<size_t>(communicator_.rank());
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  if (is_complex_product()) {
    std::vector<unsigned char> products(total * type_.bytes);
    Multiply(send, products.data(), total);
    const size_t before = std::accumulate(counts.begin(), counts.begin() + communicator_.rank(), size_t{0});
    std::memcpy(recv, products.data() + before * type_.bytes, counts[rank] * type_.bytes);
    return;
  }
  const bool is_even = std::all_of(counts.begin(), counts.end(), [&](size_t each) { return each == counts[0]; });
  std::vector<size_t> numbers = counts;
  for (size_t& each : numbers) each *= ratio();
  Do(send, total, recv, counts[rank], [&](annulus_comm_t* comm, const void* from, void* to) {
    return is_even ? annulus_reduce_scatter(comm, from, to, numbers[rank], type_.type, op_)
                   : annulus_reduce_scatterv(comm, from, numbers.data(), nullptr, to, numbers[rank], type_.type, op_);
  });
}

}  // namespace annulus_mpi
