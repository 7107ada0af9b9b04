/* Any MPI library. One thread; the argument "threads" behind the path has the library allow for more. */

#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "bench/peers/peer_calls.h"
#include "bench/peers/peer_data.h"

const int kPeerResultAtStart = 1;

static int own_rank, world_size;

void PeerStart(int* argc, char*** argv, int* rank, int* size) {
  const int wanted = *argc > 2 && strcmp((*argv)[2], "threads") == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
  int provided = 0;
  MPI_Init_thread(argc, argv, wanted, &provided);
  if (provided < wanted) {
    fprintf(stderr, "this MPI has no MPI_THREAD_MULTIPLE\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
  own_rank = *rank;
  world_size = *size;
}

int PeerHasResults(void) { return 1; }

/* MPI has no 16-bit floats, and its broadcast has one buffer. */
int PeerSupports(const PeerCase* work) {
  if (PeerIsMessages(work->kind) && work->in_place) return 0;
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

static void Move(int starts, int sends, void* buffer, int count, int peer) {
  MPI_Request request;
  if (!starts) {
    if (sends) {
      MPI_Send(buffer, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
    } else {
      MPI_Recv(buffer, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return;
  }
  if (sends) {
    MPI_Isend(buffer, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, &request);
  } else {
    MPI_Irecv(buffer, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, &request);
  }
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void CallMessages(const PeerCase* work, void* send, void* recv) {
  const int to = PeerReceiver(work->kind, own_rank, world_size), from = PeerSender(work->kind, own_rank, world_size);
  const int count = (int)work->count, starts = work->kind == kPeerIpingpong;
  MPI_Request requests[2];
  if (to < 0) return;
  if (work->kind == kPeerSendrecv) {
    MPI_Sendrecv(send, count, MPI_FLOAT, to, 0, recv, count, MPI_FLOAT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else if (work->kind == kPeerIsendrecv) {
    MPI_Irecv(recv, count, MPI_FLOAT, from, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(send, count, MPI_FLOAT, to, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
  } else if (own_rank % 2 == 0) {
    Move(starts, 1, send, count, to);
    Move(starts, 0, recv, count, from);
  } else {
    Move(starts, 0, recv, count, from);
    Move(starts, 1, send, count, to);
  }
}

static void StartAndWait(const void* from, void* recv, int count) {
  MPI_Request request;
  MPI_Iallreduce(from, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
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
    case kPeerIallreduce:
      StartAndWait(from, recv, count);
      break;
    case kPeerPingpong:
    case kPeerIpingpong:
    case kPeerSendrecv:
    case kPeerIsendrecv:
      CallMessages(work, send, recv);
      break;
    default:
      MPI_Allreduce(from, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
}

void PeerBarrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

void PeerStop(void) { MPI_Finalize(); }
