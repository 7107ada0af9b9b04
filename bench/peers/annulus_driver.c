/* Annulus, configured by the environment. */

#include <annulus.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/peers/peer_bench.h"

static annulus_comm_t* comm;

static void Need(annulus_status_t status) {
  if (status == ANNULUS_OK) return;
  fprintf(stderr, "%s: %s\n", annulus_status_string(status), annulus_last_error_message());
  exit(1);
}

void PeerStart(int* argc, char*** argv, int* rank, int* size) {
  (void)argc;
  (void)argv;
  Need(annulus_comm_create(NULL, &comm));
  Need(annulus_comm_rank(comm, rank));
  Need(annulus_comm_size(comm, size));
}

void PeerAllreduce(const float* send, float* recv, size_t count) {
  Need(annulus_allreduce(comm, send, recv, count, ANNULUS_FLOAT32, ANNULUS_SUM));
}

double PeerMax(double value) {
  double largest;
  Need(annulus_allreduce(comm, &value, &largest, 1, ANNULUS_FLOAT64, ANNULUS_MAX));
  return largest;
}

void PeerStop(void) { Need(annulus_comm_destroy(comm)); }
