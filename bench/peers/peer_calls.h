/* What `compare` asks of a library: the same calls, on the same data, timed by the same loop.
 *
 * A driver is one rank of one library: it provides the functions below, PeerStart and PeerStop, and is linked with
 * peer_bench.c, which takes orders from `compare` over a UNIX socket and waits in read() between them, so that a
 * library whose turn it is not costs nothing. One thread. */
#pragma once

#include "bench/peers/peer_bench.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum PeerKind {
  kPeerAllreduce,
  kPeerBroadcast,
  kPeerReduceScatter,
  kPeerAllgather,
  kPeerIallreduce, /* Started, then waited for. */
  kPeerPingpong,   /* Ranks 0 and 1, 2 and 3 ...: a blocking message to the odd one, and one back. */
  kPeerIpingpong,  /* The same, each message started and waited for. */
  kPeerSendrecv,   /* To the next rank, from the previous one, in one blocking call. */
  kPeerIsendrecv,  /* The same; both messages started, then both waited for. */
  kPeerKinds
} PeerKind;
typedef enum PeerType { kPeerFloat32, kPeerBfloat16, kPeerFloat16, kPeerTypes } PeerType;

/* One call to measure. Sums; the root is rank 0. */
typedef struct PeerCase {
  PeerKind kind;
  PeerType type;
  int in_place;
  size_t count; /* As the call takes it: elements of the buffer, or of one rank's part of the larger one. */
  int variant;  /* Which of PeerVariants() ways to do it; the quickest counts. */
} PeerCase;

/* Whether an in-place reduce_scatter leaves its result at the buffer's start (else where the rank's own part is). */
extern const int kPeerResultAtStart;

/* Whether the calls have results to check; a limit may only move bytes. */
int PeerHasResults(void);
int PeerSupports(const PeerCase* work);
/* Called before the first PeerCall of a case, with the buffers of all of its calls; `bytes` is each one's length. */
void PeerPrepare(const PeerCase* work, void* send, void* recv, size_t bytes);
/* After PeerPrepare. */
int PeerVariants(const PeerCase* work);
/* In place both buffers are the whole, larger one. */
void PeerCall(const PeerCase* work, void* send, void* recv);
void PeerBarrier(void);

#ifdef __cplusplus
}
#endif
