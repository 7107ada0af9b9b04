/* A user's program in C99, outside the tree: sums the ranks, checks the sum, prints "2 ranks: 3". Threads: one. */
#include <annulus.h>
#include <stdio.h>
#include <string.h>

/* What failed, in Annulus's words. */
static const char* message(void) {
  static annulus_error_t error;
  error.struct_bytes = sizeof(error);
  return annulus_last_error(&error) == ANNULUS_OK ? error.message : "";
}

int main(void) {
  annulus_comm_t* comm = NULL;
  int32_t value = 0;
  int rank = -1, size = 0;
  char version[32];
  snprintf(version, sizeof(version), "%d.%d.%d", ANNULUS_VERSION_MAJOR, ANNULUS_VERSION_MINOR, ANNULUS_VERSION_PATCH);
  if (strcmp(annulus_version(), version) != 0) return 1;
  if (annulus_comm_create(NULL, &comm) != ANNULUS_OK) {
    fprintf(stderr, "%s\n", message());
    return 2;
  }
  if (annulus_comm_rank(comm, &rank) != ANNULUS_OK || annulus_comm_size(comm, &size) != ANNULUS_OK) return 3;
  value = rank + 1;
  if (annulus_allreduce(comm, &value, &value, 1, ANNULUS_INT32, ANNULUS_SUM) != ANNULUS_OK) return 4;
  if (value != size * (size + 1) / 2) return 5;
  printf("%d ranks: %d\n", size, (int)value);
  return annulus_comm_destroy(comm) == ANNULUS_OK ? 0 : 6;
}
