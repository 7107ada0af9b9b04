/* Annulus, configured by the environment. One thread. */

#include <annulus.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/peers/peer_calls.h"
#include "bench/peers/peer_data.h"

const int kPeerResultAtStart = 0;

static annulus_comm_t* comm;
static int own_rank, world_size;

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
  world_size = *size;
}

int PeerHasResults(void) { return 1; }

int PeerSupports(const PeerCase* work) { return !(PeerIsMessages(work->kind) && work->in_place); }

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

static void Finish(annulus_request_t* request) {
  Need(annulus_request_wait(request, -1));
  Need(annulus_request_free(request));
}

static void Move(int starts, int sends, void* buffer, size_t count, annulus_type_t type, int peer) {
  annulus_request_t* request;
  if (!starts) {
    Need(sends ? annulus_send(comm, buffer, count, type, peer) : annulus_recv(comm, buffer, count, type, peer));
    return;
  }
  Need(sends ? annulus_send_async(comm, buffer, count, type, peer, &request)
             : annulus_recv_async(comm, buffer, count, type, peer, &request));
  Finish(request);
}

static void CallMessages(const PeerCase* work, annulus_type_t type, void* send, void* recv) {
  const int to = PeerReceiver(work->kind, own_rank, world_size), from = PeerSender(work->kind, own_rank, world_size);
  const int starts = work->kind == kPeerIpingpong;
  annulus_request_t *received, *sent;
  if (to < 0) return;
  if (work->kind == kPeerSendrecv) {
    Need(annulus_sendrecv(comm, send, work->count, to, recv, work->count, from, type));
  } else if (work->kind == kPeerIsendrecv) {
    Need(annulus_recv_async(comm, recv, work->count, type, from, &received));
    Need(annulus_send_async(comm, send, work->count, type, to, &sent));
    Finish(received);
    Finish(sent);
  } else if (own_rank % 2 == 0) {
    Move(starts, 1, send, work->count, type, to);
    Move(starts, 0, recv, work->count, type, from);
  } else {
    Move(starts, 0, recv, work->count, type, from);
    Move(starts, 1, send, work->count, type, to);
  }
}

void PeerCall(const PeerCase* work, void* send, void* recv) {
  static const annulus_type_t kTypes[kPeerTypes] = {ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};
  const annulus_type_t type = kTypes[work->type];
  annulus_request_t* request;
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
    case kPeerIallreduce:
      Need(annulus_allreduce_async(comm, send, recv, work->count, type, ANNULUS_SUM, &request));
      Finish(request);
      break;
    case kPeerPingpong:
    case kPeerIpingpong:
    case kPeerSendrecv:
    case kPeerIsendrecv:
      CallMessages(work, type, send, recv);
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
