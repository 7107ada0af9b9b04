/* The C API from C99: the header compiles as C, and one rank can do everything with one process. */

#include <annulus.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define EXPECT(condition)                                             \
  do {                                                                \
    if (!(condition)) {                                               \
      printf("%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                     \
    }                                                                 \
  } while (0)

static void CheckErrors(annulus_comm_t* comm) {
  float x[4] = {1, 2, 3, 4};
  annulus_error_t error;
  memset(&error, 0, sizeof error);
  error.struct_bytes = sizeof error;
  EXPECT(annulus_allreduce(comm, NULL, x, 4, ANNULUS_FLOAT32, ANNULUS_SUM) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_last_error(&error) == ANNULUS_OK);
  EXPECT(error.status == ANNULUS_INVALID_ARGUMENT);
  EXPECT(strstr(error.message, "sendbuf is null") != NULL);
  EXPECT(annulus_allreduce(comm, x, x + 1, 2, ANNULUS_FLOAT32, ANNULUS_SUM) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_last_error(&error) == ANNULUS_OK && strstr(error.message, "overlap") != NULL);
  EXPECT(annulus_allreduce(comm, (char*)x + 1, x, 1, ANNULUS_FLOAT32, ANNULUS_SUM) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_last_error(&error) == ANNULUS_OK && strstr(error.message, "aligned") != NULL);
  EXPECT(annulus_allreduce(comm, x, x, 4, (annulus_type_t)77, ANNULUS_SUM) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_allreduce(comm, x, x, 4, ANNULUS_FLOAT32, (annulus_op_t)-3) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_broadcast(comm, x, x, 4, ANNULUS_FLOAT32, 1) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_last_error(&error) == ANNULUS_OK && strstr(error.message, "root is 1") != NULL);
  EXPECT(annulus_allreduce(comm, x, x, (size_t)-1, ANNULUS_FLOAT32, ANNULUS_SUM) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_allreduce(NULL, x, x, 4, ANNULUS_FLOAT32, ANNULUS_SUM) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_last_error(&error) == ANNULUS_OK && strcmp(error.message, "comm is null") == 0);
  EXPECT(annulus_allreduce_async(comm, x, x, 4, ANNULUS_FLOAT32, ANNULUS_SUM, NULL) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_comm_rank(comm, NULL) == ANNULUS_INVALID_ARGUMENT);
  error.struct_bytes = 0;
  EXPECT(annulus_last_error(&error) == ANNULUS_INVALID_ARGUMENT);
}

static void CheckWork(annulus_comm_t* comm) {
  double x[3] = {1, 2, 3};
  double y[3] = {0, 0, 0};
  annulus_request_t* request = NULL;
  EXPECT(annulus_allreduce(comm, x, y, 3, ANNULUS_FLOAT64, ANNULUS_AVG) == ANNULUS_OK);
  EXPECT(memcmp(x, y, sizeof x) == 0);
  EXPECT(annulus_reduce_async(comm, x, y, 3, ANNULUS_FLOAT64, ANNULUS_PROD, 0, &request) == ANNULUS_OK);
  EXPECT(annulus_request_wait(request, 10000) == ANNULUS_OK);
  EXPECT(annulus_request_test(request) == ANNULUS_OK);
  EXPECT(annulus_request_free(request) == ANNULUS_OK);
  EXPECT(annulus_request_free(request) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_request_free(NULL) == ANNULUS_OK);
  EXPECT(annulus_barrier(comm) == ANNULUS_OK);
  EXPECT(annulus_allreduce(comm, NULL, NULL, 0, ANNULUS_INT32, ANNULUS_SUM) == ANNULUS_OK);
}

static int32_t KeepRight(const void* left, const void* right, void* out, size_t count, annulus_type_t type,
                         void* context) {
  (void)left;
  ++*(int*)context;
  memmove(out, right, count * annulus_type_bytes(type));
  return 0;
}

static void CheckOperations(annulus_comm_t* comm) {
  float x[3] = {1, 2, 3};
  float y[3] = {0, 0, 0};
  int calls = 0;
  annulus_op_t scaled, right;
  EXPECT(annulus_op_create_premul_sum(comm, 0.5, &scaled) == ANNULUS_OK);
  EXPECT(annulus_allreduce(comm, x, y, 3, ANNULUS_FLOAT32, scaled) == ANNULUS_OK);
  EXPECT(y[0] == 0.5f && y[1] == 1 && y[2] == 1.5f);
  EXPECT(annulus_allreduce(comm, x, x, 3, ANNULUS_FLOAT32, scaled) == ANNULUS_OK);
  EXPECT(memcmp(x, y, sizeof x) == 0);
  EXPECT(annulus_op_create(comm, KeepRight, &calls, NULL, &right) == ANNULUS_OK && right != scaled);
  EXPECT(annulus_reduce(comm, x, y, 3, ANNULUS_FLOAT32, right, 0) == ANNULUS_OK);
  EXPECT(memcmp(x, y, sizeof x) == 0 && calls == 0);
  EXPECT(annulus_op_destroy(comm, scaled) == ANNULUS_OK);
  EXPECT(annulus_op_destroy(comm, scaled) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_allreduce(comm, x, y, 3, ANNULUS_FLOAT32, scaled) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_op_destroy(comm, right) == ANNULUS_OK);
}

static void CheckConfig(void) {
  annulus_config_t config;
  annulus_error_t error;
  annulus_comm_t* comm = NULL;
  EXPECT(annulus_config_init(&config, sizeof config, 0) == ANNULUS_OK);
  EXPECT(config.struct_bytes == sizeof config);
  config.rank = 3;
  config.size = 2;
  EXPECT(annulus_comm_create(&config, &comm) == ANNULUS_INVALID_ARGUMENT);
  error.struct_bytes = sizeof error;
  EXPECT(annulus_last_error(&error) == ANNULUS_OK && strlen(error.message) > 0);
  EXPECT(error.status == ANNULUS_INVALID_ARGUMENT && error.scope == ANNULUS_SCOPE_CALL);
  config.struct_bytes = 3;
  EXPECT(annulus_comm_create(&config, &comm) == ANNULUS_INVALID_ARGUMENT);
  EXPECT(annulus_last_error(&error) == ANNULUS_OK && strstr(error.message, "struct_bytes") != NULL);
}

int main(void) {
  annulus_config_t config;
  annulus_comm_t* comm = NULL;
  int value = -1;
  CheckConfig();
  EXPECT(annulus_config_init(&config, sizeof config, 0) == ANNULUS_OK);
  config.rank = 0;
  config.size = 1;
  EXPECT(annulus_comm_create(&config, &comm) == ANNULUS_OK);
  if (comm == NULL) return 1;
  EXPECT(annulus_comm_size(comm, &value) == ANNULUS_OK && value == 1);
  EXPECT(annulus_comm_local_rank(comm, &value) == ANNULUS_OK && value == 0);
  EXPECT(annulus_type_bytes(ANNULUS_FLOAT8_E5M2) == 1 && annulus_type_bytes(ANNULUS_UINT64) == 8);
  EXPECT(annulus_type_bytes((annulus_type_t)17) == 0);
  EXPECT(annulus_type_bytes(ANNULUS_BFLOAT16) == 2 && annulus_type_bytes((annulus_type_t)99) == 0);
  EXPECT(strcmp(annulus_version(), "0.9.0") == 0);
  EXPECT(strcmp(annulus_status_string(ANNULUS_PEER_LOST), "peer lost") == 0);
  CheckWork(comm);
  CheckOperations(comm);
  CheckErrors(comm);
  CheckWork(comm);
  EXPECT(annulus_comm_abort(comm, "the end") == ANNULUS_OK);
  EXPECT(annulus_barrier(comm) == ANNULUS_ABORTED);
  EXPECT(annulus_comm_destroy(comm) == ANNULUS_OK);
  if (failures == 0) printf("all checks passed\n");
  return failures != 0;
}
