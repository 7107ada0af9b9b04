/* A program whose header is older or newer than the library: growth_test.py takes the last field of each struct away
 * (OLDER) or adds `added` (NEWER) and builds it three times. Two ranks, under annulus-run. */
#include <annulus.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;
#define EXPECT(condition)                                     \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      ++failures;                                             \
    }                                                         \
  } while (0)

enum { GUARD = 0xab };

/* A struct with bytes behind it that nobody may write. */
#define GUARDED(type)         \
  struct {                    \
    type value;               \
    unsigned char behind[64]; \
  }
#define PREPARE(guarded)                      \
  memset(&(guarded), GUARD, sizeof(guarded)); \
  (guarded).value.struct_bytes = sizeof((guarded).value)

static int Untouched(const unsigned char* bytes, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) {
    if (bytes[i] != GUARD) return 0;
  }
  return 1;
}

#ifdef NEWER
#define CHECK_TAIL(guarded)           \
  EXPECT((guarded).value.added == 0); \
  EXPECT((guarded).value.struct_bytes == sizeof((guarded).value) - sizeof((guarded).value.added))
#else
#define CHECK_TAIL(guarded) EXPECT((guarded).value.struct_bytes == sizeof((guarded).value))
#endif
#define CHECK_FILLED(guarded)                                    \
  EXPECT(Untouched((guarded).behind, sizeof((guarded).behind))); \
  CHECK_TAIL(guarded)

static void CheckOutputs(annulus_comm_t* comm, int rank) {
  GUARDED(annulus_error_t) error;
  GUARDED(annulus_counters_t) counters;
  GUARDED(annulus_peer_counters_t) peer;
  GUARDED(annulus_transport_counters_t) transport;
  GUARDED(annulus_memory_t) memory;
  PREPARE(error);
  EXPECT(annulus_comm_verdict(comm, &error.value) == ANNULUS_OK);
  CHECK_FILLED(error);
  EXPECT(error.value.status == ANNULUS_OK);
  PREPARE(error);
  EXPECT(annulus_last_error(&error.value) == ANNULUS_OK);
  CHECK_FILLED(error);
  PREPARE(counters);
  EXPECT(annulus_comm_counters(comm, &counters.value) == ANNULUS_OK);
  EXPECT(counters.value.collectives == 1);
  CHECK_FILLED(counters);
  PREPARE(peer);
  EXPECT(annulus_comm_peer_counters(comm, 1 - rank, &peer.value) == ANNULUS_OK);
  CHECK_FILLED(peer);
  PREPARE(transport);
  EXPECT(annulus_comm_transport_counters(comm, 0, &transport.value) == ANNULUS_OK);
  CHECK_FILLED(transport);
  PREPARE(memory);
  EXPECT(annulus_comm_memory(comm, &memory.value) == ANNULUS_OK);
  CHECK_FILLED(memory);
  memory.value.struct_bytes = 4;
  EXPECT(annulus_comm_memory(comm, &memory.value) == ANNULUS_INVALID_ARGUMENT);
  memory.value.struct_bytes = sizeof(memory.value) + 1;
  EXPECT(annulus_comm_memory(comm, &memory.value) == ANNULUS_INVALID_ARGUMENT);
}

static void CheckConfig(annulus_comm_t** comm) {
  GUARDED(annulus_config_t) config;
  annulus_store_t store;
  memset(&config, GUARD, sizeof config);
  EXPECT(annulus_config_init(&config.value, sizeof config.value, ANNULUS_FROM_ENVIRONMENT) == ANNULUS_OK);
  EXPECT(Untouched(config.behind, sizeof config.behind));
  EXPECT(config.value.struct_bytes == sizeof config.value && config.value.rank == -1);
#ifdef NEWER
  EXPECT(config.value.added == 0);
  config.value.added = 1;
  EXPECT(annulus_comm_create(&config.value, comm) == ANNULUS_UNSUPPORTED);
  EXPECT(*comm == NULL);
  config.value.added = 0;
#endif
  memset(&store, 0, sizeof store);
  store.struct_bytes = sizeof store;
  config.value.store = &store;
  EXPECT(annulus_comm_create(&config.value, comm) == ANNULUS_INVALID_ARGUMENT); /* It has no functions. */
  config.value.store = NULL;
  EXPECT(annulus_comm_create(&config.value, comm) == ANNULUS_OK);
}

/* Calls in an array lie as far apart as the program's struct is large. */
static void CheckCalls(annulus_comm_t* comm) {
  annulus_call_t calls[3];
  annulus_request_t* request = NULL;
  int32_t values[3] = {1, 2, 3};
  int i;
  memset(calls, 0, sizeof calls);
  for (i = 0; i < 3; ++i) {
    calls[i].struct_bytes = sizeof calls[i];
    calls[i].kind = ANNULUS_CALL_ALLREDUCE;
    calls[i].type = ANNULUS_INT32;
    calls[i].op = ANNULUS_SUM;
    calls[i].sendbuf = calls[i].recvbuf = &values[i];
    calls[i].count = 1;
  }
  EXPECT(annulus_run(comm, calls) == ANNULUS_OK);
  EXPECT(annulus_submit(comm, calls, 3, &request) == ANNULUS_OK);
  EXPECT(annulus_request_wait(request, -1) == ANNULUS_OK);
  EXPECT(annulus_request_free(request) == ANNULUS_OK);
  EXPECT(values[0] == 4 && values[1] == 4 && values[2] == 6);
#ifdef NEWER
  calls[2].added = 1;
  EXPECT(annulus_submit(comm, calls, 3, &request) == ANNULUS_UNSUPPORTED);
  EXPECT(annulus_run(comm, &calls[2]) == ANNULUS_UNSUPPORTED);
  EXPECT(values[2] == 6);
#endif
}

int main(void) {
  annulus_comm_t* comm = NULL;
  int rank = -1;
  CheckConfig(&comm);
  if (comm == NULL) return 1;
  EXPECT(annulus_comm_rank(comm, &rank) == ANNULUS_OK);
  EXPECT(annulus_barrier(comm) == ANNULUS_OK);
  CheckOutputs(comm, rank);
  CheckCalls(comm);
  EXPECT(annulus_comm_destroy(comm) == ANNULUS_OK);
  return failures != 0;
}
