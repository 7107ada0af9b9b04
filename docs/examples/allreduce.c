/* The smallest useful program: every rank contributes an array, every rank gets the sum.
 *
 * Start it with the launcher, here with four processes:  annulus-run -np 4 allreduce_example
 * Threads: one. */
#include <annulus.h>
#include <stdio.h>
#include <stdlib.h>

enum { kCount = 1000000 };

/* Says what failed, in Annulus's own words, and gives up. */
static void fail(const char* what, annulus_status_t status) {
  annulus_error_t error = {0};
  error.struct_bytes = sizeof(error); /* So that later versions may add fields. */
  annulus_last_error(&error);         /* The message names the rank at fault, and is the same on every rank. */
  fprintf(stderr, "%s: %s: %s %s\n", what, annulus_status_string(status), error.message, error.advice);
  exit(EXIT_FAILURE);
}

int main(void) {
  annulus_comm_t* comm = NULL;
  annulus_status_t status;
  int rank, size;
  float* values;
  size_t i;

  /* 1. Join the job. NULL: take rank, size, meeting point and job key from the environment, where the launcher put
   * them. */
  status = annulus_comm_create(NULL, &comm);
  if (status != ANNULUS_OK) fail("cannot join the job", status);
  annulus_comm_rank(comm, &rank);
  annulus_comm_size(comm, &size);

  /* 2. Fill this rank's array. Small integers, so that the sum below is exact. */
  values = malloc(kCount * sizeof(*values));
  if (values == NULL) return EXIT_FAILURE;
  for (i = 0; i < kCount; ++i) values[i] = (float)(rank + 1) + (float)(i % 100);

  /* 3. Add up the arrays of all ranks, element by element. In place: the result replaces the input. */
  status = annulus_allreduce(comm, values, values, kCount, ANNULUS_FLOAT32, ANNULUS_SUM);
  if (status != ANNULUS_OK) fail("allreduce", status);

  /* 4. Every rank now has the same sums: 1 + 2 + ... + size, and size times the part that all ranks share. */
  for (i = 0; i < kCount; ++i) {
    const float expected = (float)(size * (size + 1) / 2) + (float)size * (float)(i % 100);
    if (values[i] != expected) {
      fprintf(stderr, "rank %d: element %zu is %g instead of %g\n", rank, i, values[i], expected);
      return EXIT_FAILURE;
    }
  }
  printf("rank %d of %d: all %d sums are right, the first is %g\n", rank, size, kCount, values[0]);
  free(values);

  /* 5. Leave the job. */
  status = annulus_comm_destroy(comm);
  if (status != ANNULUS_OK) fail("cannot leave the job", status);
  return EXIT_SUCCESS;
}
