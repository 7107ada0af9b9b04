/* Annulus, configured by the environment. One thread. */

#include <annulus.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/peers/peer_calls.h"

const int kPeerResultAtStart = 0;

static annulus_comm_t* comm;
static int own_rank;

static void Need(annulus_status_t status) {
  if (status == ANNULUS_OK) return;
  annulus_error_t error = {0};
  error.struct_bytes = sizeof(error);
  annulus_last_error(&error);
  fprintf(stderr, "%s: %s\n", annulus_status_string(status), error.message);
  exit(1);
}

void PeerStart(int* argc, char*** argv, int* rank, int* size) {
  (void)argc;
  (void)argv;
  Need(annulus_comm_create(NULL, &comm));
  Need(annulus_comm_rank(comm, rank));
  Need(annulus_comm_size(comm, size));
  own_rank = *rank;
}

int PeerHasResults(void) { return 1; }

int PeerSupports(const PeerCase* work) {
  (void)work;
  return 1;
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
  static const annulus_type_t kTypes[kPeerTypes] = {ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};
  const annulus_type_t type = kTypes[work->type];
  const size_t own = work->in_place ? (size_t)own_rank * work->count * annulus_type_bytes(type) : 0;
  switch (work->kind) {
    case kPeerBroadcast:
      Need(annulus_broadcast(comm, send, recv, work->count, type, 0));
      break;
    case kPeerReduceScatter:
      Need(annulus_reduce_scatter(comm, send, (char*)recv + own, work->count, type, ANNULUS_SUM));
      break;
    case kPeerAllgather:
      Need(annulus_allgather(comm, (char*)send + own, recv, work->count, type));
      break;
    default:
      Need(annulus_allreduce(comm, send, recv, work->count, type, ANNULUS_SUM));
  }
}

void PeerAllreduce(const float* send, float* recv, size_t count) {
  Need(annulus_allreduce(comm, send, recv, count, ANNULUS_FLOAT32, ANNULUS_SUM));
}

void PeerBarrier(void) { Need(annulus_barrier(comm)); }

void PeerStop(void) { Need(annulus_comm_destroy(comm)); }
