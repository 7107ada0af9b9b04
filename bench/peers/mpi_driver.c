/* Any MPI library. */

#include <mpi.h>

#include "bench/peers/peer_bench.h"

void PeerStart(int* argc, char*** argv, int* rank, int* size) {
  MPI_Init(argc, argv);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
}

void PeerAllreduce(const float* send, float* recv, size_t count) {
  MPI_Allreduce(send == recv ? MPI_IN_PLACE : send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

double PeerMax(double value) {
  double largest;
  MPI_Allreduce(&value, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return largest;
}

void PeerStop(void) { MPI_Finalize(); }
