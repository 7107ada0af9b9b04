/* Any MPI library. One thread. */

#include <mpi.h>
#include <stddef.h>

#include "bench/peers/peer_calls.h"

const int kPeerResultAtStart = 1;

void PeerStart(int* argc, char*** argv, int* rank, int* size) {
  MPI_Init(argc, argv);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
}

int PeerHasResults(void) { return 1; }

/* MPI has no 16-bit floats, and its broadcast has one buffer. */
int PeerSupports(const PeerCase* work) {
  return work->type == kPeerFloat32 && (work->kind != kPeerBroadcast || work->in_place);
}

void PeerPrepare(const PeerCase* work, void* send, void* recv, size_t bytes) {
  (void)work;
  (void)send;
  (void)recv;
  (void)bytes;
}

int PeerVariants(const PeerCase* work) {
  (void)work;
  return 1;
}

void PeerCall(const PeerCase* work, void* send, void* recv) {
  const void* const from = work->in_place ? MPI_IN_PLACE : send;
  const int count = (int)work->count;
  switch (work->kind) {
    case kPeerBroadcast:
      MPI_Bcast(recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
      break;
    case kPeerReduceScatter:
      MPI_Reduce_scatter_block(from, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case kPeerAllgather:
      MPI_Allgather(from, count, MPI_FLOAT, recv, count, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    default:
      MPI_Allreduce(from, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
}

void PeerBarrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

void PeerStop(void) { MPI_Finalize(); }
