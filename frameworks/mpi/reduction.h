// Reduction: what MPI asks for in a reduction, done by Annulus: as it is, through a wider type, or from everybody's
// data.
//
// Threads: any.
#pragma once

#include <annulus.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "frameworks/mpi/abi.h"
#include "frameworks/mpi/communicator.h"
#include "frameworks/mpi/elements.h"

namespace annulus_mpi {

class Reduction {
 public:
  // Throws Error for what cannot be reduced.
  Reduction(const Communicator& communicator, Handle datatype, Handle op);

  // `count` elements; `send` may be `recv`.
  void AllReduce(const void* send, void* recv, size_t count) const;
  // Only the root's `recv` is written.
  void Reduce(const void* send, void* recv, size_t count, int root) const;
  // Rank r gets counts[r] elements. The buffers do not overlap.
  void ReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts) const;

 private:
  // A reduction of Annulus over its own elements, `ratio` times as many.
  using Plain = std::function<annulus_status_t(annulus_comm_t*, const void* send, void* recv)>;

  // Does `plain`, through a wider type where need be.
  void Do(const void* send, size_t send_count, void* recv, size_t recv_count, const Plain& plain) const;
  void Multiply(const void* send, void* recv, size_t count) const;
  bool is_complex_product() const { return type_.numbers == Numbers::kComplex && op_ == ANNULUS_PROD; }
  // Numbers of Annulus for each element.
  size_t ratio() const { return type_.numbers == Numbers::kComplex ? 2 : 1; }

  const Communicator& communicator_;
  const ElementType type_;
  const annulus_op_t op_;
};

}  // namespace annulus_mpi
