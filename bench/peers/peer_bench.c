/* usage: DRIVER BYTES inplace|outofplace BATCHES; prints one line per batch: microseconds per operation. */

#define _POSIX_C_SOURCE 199309L /* clock_gettime */

#include "bench/peers/peer_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double kBatchSeconds = 0.15; /* Long enough to drown the clock, short enough for many rounds. */

static double Seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double Batch(const float* send, float* recv, size_t count, int iterations) {
  double begin;
  int i;
  PeerMax(0); /* Everybody starts together. */
  begin = Seconds();
  for (i = 0; i < iterations; ++i) PeerAllreduce(send, recv, count);
  return PeerMax((Seconds() - begin) / iterations);
}

/* Sums of small integers are exact in every order. */
static void Check(float* send, float* recv, size_t count, int rank, int size) {
  const float ranks = (float)size;
  size_t i;
  for (i = 0; i < count; ++i) send[i] = (float)(rank + (int)(i % 97));
  PeerAllreduce(send, recv, count);
  for (i = 0; i < count; ++i) {
    const float expected = ranks * (float)(i % 97) + ranks * (ranks - 1) / 2;
    if (recv[i] != expected) {
      fprintf(stderr, "rank %d: element %zu is %g, not %g\n", rank, i, recv[i], expected);
      exit(1);
    }
  }
  memset(send, 0, count * sizeof(float)); /* In place the values would grow from call to call. */
  memset(recv, 0, count * sizeof(float));
}

int main(int argc, char** argv) {
  int rank, size, batch, iterations;
  size_t bytes, count;
  float *send, *recv;
  double once;
  PeerStart(&argc, &argv, &rank, &size);
  if (argc < 4) {
    fprintf(stderr, "usage: %s BYTES inplace|outofplace BATCHES\n", argv[0]);
    return 2;
  }
  bytes = strtoul(argv[1], NULL, 10);
  count = bytes / sizeof(float);
  send = malloc(bytes);
  recv = strcmp(argv[2], "inplace") == 0 ? send : malloc(bytes);
  if (send == NULL || recv == NULL) return 1;
  Check(send, recv, count, rank, size);
  Batch(send, recv, count, 2);
  once = Batch(send, recv, count, 2);
  iterations = (int)(kBatchSeconds / once);
  if (iterations < 2) iterations = 2;
  for (batch = 0; batch < atoi(argv[3]); ++batch) {
    const double time = Batch(send, recv, count, iterations);
    if (rank == 0) printf("%.3f\n", time * 1e6);
  }
  PeerStop();
  return 0;
}
