// Collectives of MPI: those that XLA uses, and their near relations.
//
// Threads: any; ranks must agree on the order within a communicator.

#include <annulus.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "frameworks/mpi/abi.h"
#include "frameworks/mpi/elements.h"
#include "frameworks/mpi/error.h"
#include "frameworks/mpi/job.h"

namespace annulus_mpi {
namespace {

bool IsInPlace(const void* buffer) { return reinterpret_cast<intptr_t>(buffer) == kIN_PLACE; }

void* At(void* buffer, size_t bytes) { return static_cast<unsigned char*>(buffer) + bytes; }

// The input of a call: the user's, or a copy where it overlaps the output, which MPI's caller may not know to be wrong.
class Input {
 public:
  Input(const void* buffer, size_t bytes, const void* output, size_t output_bytes) : buffer_(buffer) {
    const auto first = reinterpret_cast<uintptr_t>(buffer);
    const auto other = reinterpret_cast<uintptr_t>(output);
    if (bytes == 0 || output_bytes == 0 || first >= other + output_bytes || other >= first + bytes) return;
    copy_ = std::make_unique<unsigned char[]>(bytes);
    std::memcpy(copy_.get(), buffer, bytes);
    buffer_ = copy_.get();
  }
  const void* get() const { return buffer_; }

 private:
  const void* buffer_;
  std::unique_ptr<unsigned char[]> copy_;
};

void RequireRoot(int root, const Communicator& communicator) {
  Require(root >= 0 && root < communicator.size(), kERR_ROOT,
          "root is " + std::to_string(root) + "; allowed: 0 to " + std::to_string(communicator.size() - 1));
}

// What each rank gives and what it gets, in bytes, which must agree.
size_t PartBytes(int sendcount, Handle sendtype, int recvcount, Handle recvtype) {
  const size_t bytes = BytesOf(sendcount, sendtype);
  const size_t received = BytesOf(recvcount, recvtype);
  Require(bytes == received, kERR_COUNT,
          "a part has " + std::to_string(bytes) + " bytes where it is sent and " + std::to_string(received) +
              " where it is received");
  return bytes;
}

using Body = std::function<void(const Communicator& communicator)>;

int On(const char* function, Handle comm, const Body& body) {
  return Guarded(function, [&] {
    const std::shared_ptr<Communicator> communicator = Job::Own().CommunicatorOf(comm);
    communicator->RequireUsable();
    body(*communicator);
  });
}

void ReduceScatter(const Communicator& communicator, const void* send, void* recv, const std::vector<size_t>& counts,
                   Handle datatype, Handle op) {
  const Reduction reduction = ReductionOf(datatype, op);
  const size_t element = annulus_type_bytes(reduction.type);
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  const size_t own = counts[static_cast<size_t>(communicator.rank())];
  const Input input(IsInPlace(send) ? recv : send, total * element, recv, own * element);
  const bool is_even = std::ranges::all_of(counts, [own](size_t count) { return count == own; });
  const Communicator::Use use(communicator);
  communicator.Check(is_even ? annulus_reduce_scatter(use.get(), input.get(), recv, own, reduction.type, reduction.op)
                             : annulus_reduce_scatterv(use.get(), input.get(), counts.data(), nullptr, recv, own,
                                                       reduction.type, reduction.op));
}

}  // namespace

ANNULUS_MPI_EXPORT int MPIABI_Barrier(Handle comm) {
  return On("MPI_Barrier", comm, [&](const Communicator& communicator) {
    const Communicator::Use use(communicator);
    communicator.Check(annulus_barrier(use.get()));
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Bcast(void* buffer, int count, Handle datatype, int root, Handle comm) {
  return On("MPI_Bcast", comm, [&](const Communicator& communicator) {
    const size_t bytes = BytesOf(count, datatype);
    RequireRoot(root, communicator);
    const Communicator::Use use(communicator);
    communicator.Check(annulus_broadcast(use.get(), buffer, buffer, bytes, ANNULUS_UINT8, root));
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Allreduce(const void* send, void* recv, int count, Handle datatype, Handle op,
                                        Handle comm) {
  return On("MPI_Allreduce", comm, [&](const Communicator& communicator) {
    const Reduction reduction = ReductionOf(datatype, op);
    const size_t bytes = BytesOf(count, datatype);
    const auto elements = static_cast<size_t>(count);
    const Communicator::Use use(communicator);
    if (IsInPlace(send) || send == recv) {
      return communicator.Check(annulus_allreduce(use.get(), recv, recv, elements, reduction.type, reduction.op));
    }
    const Input input(send, bytes, recv, bytes);
    communicator.Check(annulus_allreduce(use.get(), input.get(), recv, elements, reduction.type, reduction.op));
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Reduce(const void* send, void* recv, int count, Handle datatype, Handle op, int root,
                                     Handle comm) {
  return On("MPI_Reduce", comm, [&](const Communicator& communicator) {
    RequireRoot(root, communicator);
    const Reduction reduction = ReductionOf(datatype, op);
    const size_t bytes = BytesOf(count, datatype);
    const bool is_root = communicator.rank() == root;
    const bool in_place = IsInPlace(send) || send == recv;
    Require(is_root || !IsInPlace(send), kERR_BUFFER, "MPI_IN_PLACE is for the root");
    const Input input(in_place ? nullptr : send, in_place ? 0 : bytes, recv, is_root ? bytes : 0);
    const Communicator::Use use(communicator);
    communicator.Check(annulus_reduce(use.get(), in_place ? recv : input.get(), recv, static_cast<size_t>(count),
                                      reduction.type, reduction.op, root));
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Reduce_scatter(const void* send, void* recv, const int* recvcounts, Handle datatype,
                                             Handle op, Handle comm) {
  return On("MPI_Reduce_scatter", comm, [&](const Communicator& communicator) {
    Require(recvcounts != nullptr, kERR_ARG, "recvcounts is NULL");
    std::vector<size_t> counts;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      counts.push_back(BytesOf(recvcounts[rank], datatype) / annulus_type_bytes(TypeOf(datatype)));
    }
    ReduceScatter(communicator, send, recv, counts, datatype, op);
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Reduce_scatter_block(const void* send, void* recv, int recvcount, Handle datatype,
                                                   Handle op, Handle comm) {
  return On("MPI_Reduce_scatter_block", comm, [&](const Communicator& communicator) {
    const size_t count = BytesOf(recvcount, datatype) / annulus_type_bytes(TypeOf(datatype));
    const std::vector<size_t> counts(static_cast<size_t>(communicator.size()), count);
    ReduceScatter(communicator, send, recv, counts, datatype, op);
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Allgather(const void* send, int sendcount, Handle sendtype, void* recv, int recvcount,
                                        Handle recvtype, Handle comm) {
  return On("MPI_Allgather", comm, [&](const Communicator& communicator) {
    const bool in_place = IsInPlace(send);
    const size_t bytes = in_place ? BytesOf(recvcount, recvtype) : PartBytes(sendcount, sendtype, recvcount, recvtype);
    const void* const own = At(recv, static_cast<size_t>(communicator.rank()) * bytes);
    const Communicator::Use use(communicator);
    if (in_place || send == own) {
      return communicator.Check(annulus_allgather(use.get(), own, recv, bytes, ANNULUS_UINT8));
    }
    const Input input(send, bytes, recv, bytes * static_cast<size_t>(communicator.size()));
    communicator.Check(annulus_allgather(use.get(), input.get(), recv, bytes, ANNULUS_UINT8));
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Alltoall(const void* send, int sendcount, Handle sendtype, void* recv, int recvcount,
                                       Handle recvtype, Handle comm) {
  return On("MPI_Alltoall", comm, [&](const Communicator& communicator) {
    const bool in_place = IsInPlace(send);
    const size_t bytes = in_place ? BytesOf(recvcount, recvtype) : PartBytes(sendcount, sendtype, recvcount, recvtype);
    const size_t total = bytes * static_cast<size_t>(communicator.size());
    const Input input(in_place ? recv : send, total, recv, total);
    const Communicator::Use use(communicator);
    communicator.Check(annulus_alltoall(use.get(), input.get(), recv, bytes, ANNULUS_UINT8));
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Gather(const void* send, int sendcount, Handle sendtype, void* recv, int recvcount,
                                     Handle recvtype, int root, Handle comm) {
  return On("MPI_Gather", comm, [&](const Communicator& communicator) {
    RequireRoot(root, communicator);
    const Communicator::Use use(communicator);
    if (communicator.rank() != root) {
      const size_t bytes = BytesOf(sendcount, sendtype);
      return communicator.Check(annulus_gather(use.get(), send, nullptr, bytes, ANNULUS_UINT8, root));
    }
    const bool in_place = IsInPlace(send);
    const size_t bytes = in_place ? BytesOf(recvcount, recvtype) : PartBytes(sendcount, sendtype, recvcount, recvtype);
    const void* const own = At(recv, static_cast<size_t>(root) * bytes);
    communicator.Check(annulus_gather(use.get(), in_place ? own : send, recv, bytes, ANNULUS_UINT8, root));
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Scatter(const void* send, int sendcount, Handle sendtype, void* recv, int recvcount,
                                      Handle recvtype, int root, Handle comm) {
  return On("MPI_Scatter", comm, [&](const Communicator& communicator) {
    RequireRoot(root, communicator);
    const Communicator::Use use(communicator);
    if (communicator.rank() != root) {
      const size_t bytes = BytesOf(recvcount, recvtype);
      return communicator.Check(annulus_scatter(use.get(), nullptr, recv, bytes, ANNULUS_UINT8, root));
    }
    const bool in_place = IsInPlace(recv);
    const size_t bytes = in_place ? BytesOf(sendcount, sendtype) : PartBytes(sendcount, sendtype, recvcount, recvtype);
    void* const own = At(const_cast<void*>(send), static_cast<size_t>(root) * bytes);
    communicator.Check(annulus_scatter(use.get(), send, in_place ? own : recv, bytes, ANNULUS_UINT8, root));
  });
}

}  // namespace annulus_mpi
