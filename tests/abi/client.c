/* A user's program that compiles without a warning as C99 and as C++20, pedantic and with -Wpadded: client_test.py. One
 * rank, no launcher. */
#include <annulus.h>
#include <stdio.h>
#include <string.h>

static int32_t add(const void* left, const void* right, void* out, size_t count, annulus_type_t type, void* context) {
  const float* const l = (const float*)left;
  const float* const r = (const float*)right;
  float* const o = (float*)out;
  size_t i;
  (void)context;
  if (type != ANNULUS_FLOAT32) return 1;
  for (i = 0; i < count; ++i) o[i] = l[i] + r[i];
  return 0;
}

int main(void) {
  const char* settings[] = {"channels=2", "spin_us=0", NULL};
  annulus_config_t config;
  annulus_call_t call;
  annulus_error_t error;
  annulus_counters_t counters;
  annulus_comm_t* comm = NULL;
  annulus_op_t op = ANNULUS_SUM;
  float value = 2;
  if (annulus_config_init(&config, sizeof(config), 0) != ANNULUS_OK) return 1;
  config.rank = 0;
  config.size = 1;
  config.settings = settings;
  memset(&error, 0, sizeof(error));
  error.struct_bytes = sizeof(error);
  if (annulus_comm_create(&config, &comm) != ANNULUS_OK) {
    annulus_last_error(&error);
    fprintf(stderr, "%s\n", error.message);
    return 2;
  }
  if (annulus_op_create(comm, add, NULL, NULL, &op) != ANNULUS_OK) return 3;
  memset(&call, 0, sizeof(call));
  call.struct_bytes = sizeof(call);
  call.kind = ANNULUS_CALL_ALLREDUCE;
  call.type = ANNULUS_FLOAT32;
  call.op = op;
  call.sendbuf = &value;
  call.recvbuf = &value;
  call.count = 1;
  call.label = "the only one";
  if (annulus_run(comm, &call) != ANNULUS_OK || value < 2 || value > 2) return 4;
  memset(&counters, 0, sizeof(counters));
  counters.struct_bytes = sizeof(counters);
  if (annulus_comm_counters(comm, &counters) != ANNULUS_OK || counters.collectives != 1) return 5;
  if (annulus_comm_verdict(comm, &error) != ANNULUS_OK || error.status != ANNULUS_OK) return 6;
  return annulus_comm_destroy(comm) == ANNULUS_OK ? 0 : 7;
}
