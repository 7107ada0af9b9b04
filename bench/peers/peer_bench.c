/* usage: DRIVER SOCKET [the driver's own arguments]
 *
 * Says "RANK SIZE" on the UNIX socket and then obeys, a line each, answering each but the last with a line:
 *   case KIND TYPE IN_PLACE BYTES HUGE CORRUPT   allocate (with huge pages if HUGE), do it once, check the result,
 *                                                CORRUPT elements of which are spoilt on rank 0
 *                                                -> "ready VARIANTS WRONG" or "unsupported"
 *   run VARIANT ITERATIONS BATCHES               -> "times" and for each batch the seconds that this rank took
 *   free                                         -> "freed"
 *   quit
 * The end of the socket ends the process: nothing outlives the one who gives the orders.
 *
 * Orders end with a barrier: a library may return from a call with data for others still queued, and send it only while
 * it is being called (Open MPI over TCP does), but a rank that waits for orders calls nothing. */

#define _DEFAULT_SOURCE /* mmap's MAP_ANONYMOUS, madvise, clock_gettime, fdopen */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "bench/peers/peer_calls.h"
#include "bench/peers/peer_data.h"

typedef struct Session {
  int rank, size;
  PeerCase work;
  size_t bytes; /* Of each buffer; 0 without a case. */
  void *send, *recv;
  FILE *orders, *answers;
} Session;

static void Die(const char* what) {
  perror(what);
  exit(1);
}

static double Seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Fresh pages, aligned alike for every library, whatever its malloc is set to do. */
static void* MapBuffer(size_t bytes, int huge) {
  void* const buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED) Die("mmap");
  if (huge) madvise(buffer, bytes, MADV_HUGEPAGE); /* Advice: without huge pages the kernel has none to give. */
  return buffer;
}

static void FreeBuffers(Session* session) {
  if (session->bytes == 0) return;
  munmap(session->recv, session->bytes);
  if (session->send != session->recv) munmap(session->send, session->bytes);
  session->bytes = 0;
}

static void Spoil(const Session* session, long corrupt) {
  unsigned char* const result = session->recv;
  const size_t element_bytes = PeerTypeBytes(session->work.type);
  long i;
  for (i = 0; session->rank == 0 && i < corrupt && (size_t)i < session->work.count; ++i) {
    result[(size_t)i * element_bytes] ^= 1;
  }
}

static void BeginCase(Session* session, char* arguments) {
  PeerCase* const work = &session->work;
  int kind, type, huge;
  long corrupt;
  size_t larger, wrong = 0;
  FreeBuffers(session);
  if (sscanf(arguments, "%d %d %d %zu %d %ld", &kind, &type, &work->in_place, &larger, &huge, &corrupt) != 6 ||
      kind < 0 || kind >= kPeerKinds || type < 0 || type >= kPeerTypes || larger == 0) {
    fprintf(stderr, "no such case: %s\n", arguments);
    exit(1);
  }
  work->kind = (PeerKind)kind;
  work->type = (PeerType)type;
  work->variant = 0;
  work->count = 1;
  work->count = larger / PeerTypeBytes(work->type) / PeerLargerCount(work, session->size);
  if (work->count == 0) work->count = 1;
  if (!PeerSupports(work) || !PeerExact(work->type, session->size)) {
    fprintf(session->answers, "unsupported\n");
    return;
  }
  session->bytes = PeerLargerCount(work, session->size) * PeerTypeBytes(work->type);
  session->recv = MapBuffer(session->bytes, huge);
  session->send = work->in_place ? session->recv : MapBuffer(session->bytes, huge);
  PeerPrepare(work, session->send, session->recv, session->bytes);
  PeerFill(work, session->rank, session->size, session->send, session->recv);
  PeerCall(work, session->send, session->recv);
  PeerBarrier();
  if (PeerHasResults()) {
    Spoil(session, corrupt);
    wrong = PeerCountWrong(work, session->rank, session->size, session->recv);
  }
  memset(session->recv, 0, session->bytes); /* In place the values would grow from call to call. */
  memset(session->send, 0, session->bytes);
  fprintf(session->answers, "ready %d %zu\n", PeerVariants(work), wrong);
}

static void RunBatches(Session* session, char* arguments) {
  long iterations, batches, batch, i;
  if (session->bytes == 0 || sscanf(arguments, "%d %ld %ld", &session->work.variant, &iterations, &batches) != 3) {
    fprintf(stderr, "no such run: %s\n", arguments);
    exit(1);
  }
  fprintf(session->answers, "times");
  for (batch = 0; batch < batches; ++batch) {
    double begin;
    PeerBarrier(); /* Everybody starts together. */
    begin = Seconds();
    for (i = 0; i < iterations; ++i) PeerCall(&session->work, session->send, session->recv);
    fprintf(session->answers, " %.9f", Seconds() - begin);
  }
  PeerBarrier();
  fprintf(session->answers, "\n");
}

static void Connect(Session* session, const char* path) {
  struct sockaddr_un name;
  const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  memset(&name, 0, sizeof(name));
  name.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof(name.sun_path)) {
    fprintf(stderr, "the socket's path is too long: %s\n", path);
    exit(1);
  }
  memcpy(name.sun_path, path, strlen(path));
  if (file < 0 || connect(file, (struct sockaddr*)&name, sizeof(name)) != 0) Die(path);
  session->orders = fdopen(file, "r");
  session->answers = fdopen(dup(file), "w");
  if (session->orders == NULL || session->answers == NULL) Die("fdopen");
  fprintf(session->answers, "%d %d\n", session->rank, session->size);
  fflush(session->answers);
}

int main(int argc, char** argv) {
  Session session;
  char line[256];
  memset(&session, 0, sizeof(session));
  PeerStart(&argc, &argv, &session.rank, &session.size);
  if (argc < 2) {
    fprintf(stderr, "usage: %s SOCKET; started by bench/peers/compare\n", argv[0]);
    return 2;
  }
  Connect(&session, argv[1]);
  while (fgets(line, sizeof(line), session.orders) != NULL) {
    if (strncmp(line, "quit", 4) == 0) {
      PeerStop();
      return 0;
    }
    if (strncmp(line, "case ", 5) == 0) {
      BeginCase(&session, line + 5);
    } else if (strncmp(line, "run ", 4) == 0) {
      RunBatches(&session, line + 4);
    } else {
      FreeBuffers(&session);
      fprintf(session.answers, "freed\n");
    }
    fflush(session.answers);
  }
  fprintf(stderr, "rank %d: nobody gives orders any more\n", session.rank);
  exit(1);
}
