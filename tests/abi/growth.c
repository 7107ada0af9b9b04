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

/* Whether the latest call was refused like this. */
static int IsRefused(annulus_status_t status, annulus_status_t expected, const char* message) {
  annulus_error_t error;
  memset(&error, 0, sizeof error);
  error.struct_bytes = sizeof error;
  EXPECT(annulus_last_error(&error) == ANNULUS_OK);
  if (status == expected && error.status == expected && strcmp(error.message, message) == 0) return 1;
  fprintf(stderr, "%d: %s\n", (int)status, error.message);
  return 0;
}

static void CheckOutputs(annulus_comm_t* comm, int rank) {
  GUARDED(annulus_error_t) error;
  GUARDED(annulus_counters_t) counters;
  GUARDED(annulus_peer_counters_t) peer;
  GUARDED(annulus_transport_counters_t) transport;
  GUARDED(annulus_memory_t) memory;
  GUARDED(annulus_device_t) device;
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
  PREPARE(device);
  EXPECT(annulus_comm_device(comm, &device.value) == ANNULUS_OK);
  CHECK_FILLED(device);
}

static void CheckConfig(annulus_comm_t** comm) {
  GUARDED(annulus_config_t) config;
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
  EXPECT(annulus_comm_create(&config.value, comm) == ANNULUS_OK);
}

static void CheckReceived(annulus_comm_t* comm, int rank) {
  GUARDED(annulus_received_t) received;
  annulus_call_t call;
  annulus_request_t* request = NULL;
  int32_t values[2];
  values[0] = rank + 5;
  values[1] = 0;
  EXPECT(annulus_send_async(comm, &values[0], 1, ANNULUS_INT32, 1 - rank, &request) == ANNULUS_OK);
  PREPARE(received);
  memset(&call, 0, sizeof call);
  call.struct_bytes = sizeof call;
  call.kind = ANNULUS_CALL_RECV;
  call.type = ANNULUS_INT32;
  call.recvbuf = &values[1];
  call.count = 1;
  call.root = ANNULUS_ANY_PEER;
#ifndef OLDER
  call.received = &received.value;
#endif
  EXPECT(annulus_run(comm, &call) == ANNULUS_OK);
  EXPECT(values[1] == 6 - rank);
#ifndef OLDER
  CHECK_FILLED(received);
  EXPECT(received.value.source == 1 - rank && received.value.count == 1);
#endif
  EXPECT(annulus_request_wait(request, -1) == ANNULUS_OK);
  EXPECT(annulus_request_free(request) == ANNULUS_OK);
}

static int32_t Set(void* context, const char* key, const void* value, size_t bytes) {
  if (key[0] != '\0' && value != NULL && bytes > 0) ++*(int*)context;
  return 0;
}

static int32_t Listening(void* context, const char* address) {
  (void)context;
  return address[0] == '\0';
}

#ifndef OLDER
static int32_t Get(void* context, const char* key, void* value, size_t capacity, size_t* bytes, int64_t timeout_ms) {
  (void)context, (void)key, (void)value, (void)capacity, (void)bytes, (void)timeout_ms;
  return 1;
}
#endif

/* What a rank alone leaves in the store. Every version of a store has all of today's fields, so an older one is none.
 */
static void CheckStore(void) {
  static const char* const settings[] = {"rank=0", "size=1", "interface_name=lo", NULL};
  annulus_config_t config;
  annulus_store_t store;
  annulus_comm_t* alone = NULL;
  int sets = 0;
  EXPECT(annulus_config_init(&config, sizeof config, 0) == ANNULUS_OK);
  memset(&store, 0, sizeof store);
  store.struct_bytes = sizeof store;
  store.context = &sets;
  store.set = Set;
  config.settings = settings;
  config.store = &store;
  config.listening = Listening;
#ifdef OLDER
  EXPECT(IsRefused(annulus_comm_create(&config, &alone), ANNULUS_INVALID_ARGUMENT,
                   "struct_bytes is 24; set it to sizeof(annulus_store_t)"));
#else
  EXPECT(IsRefused(annulus_comm_create(&config, &alone), ANNULUS_INVALID_ARGUMENT,
                   "store of annulus_config_t has no function get"));
  store.get = Get;
#ifdef NEWER
  store.added = 1;
  EXPECT(IsRefused(annulus_comm_create(&config, &alone), ANNULUS_UNSUPPORTED,
                   "byte 32 of annulus_store_t is set, in a field that this version of Annulus does not have"));
  EXPECT(alone == NULL && sets == 0);
  store.added = 0;
#endif
  EXPECT(annulus_comm_create(&config, &alone) == ANNULUS_OK);
  EXPECT(sets == 1);
  EXPECT(annulus_comm_destroy(alone) == ANNULUS_OK);
#endif
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
  CheckStore();
  CheckConfig(&comm);
  if (comm == NULL) return 1;
  EXPECT(annulus_comm_rank(comm, &rank) == ANNULUS_OK);
  EXPECT(annulus_barrier(comm) == ANNULUS_OK);
  CheckOutputs(comm, rank);
  CheckCalls(comm);
  CheckReceived(comm, rank);
  EXPECT(annulus_comm_destroy(comm) == ANNULUS_OK);
  return failures != 0;
}
