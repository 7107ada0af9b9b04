/* usage: cpu_distance FIRST_CPU SECOND_CPU; prints how many nanoseconds a flag takes from one CPU to the other.
 *
 * On a virtual machine the hypervisor may move the virtual CPUs closer together or further apart at any time; nothing
 * but this shows it. Two threads, one pinned to each CPU, bounce a flag; the median of short batches is printed, so
 * that a few interruptions change nothing. */

#define _GNU_SOURCE /* sched_setaffinity */

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kBatches = 41, kTrips = 200, kLineBytes = 64 };

/* Each on a line of its own: what is measured is one line's way across. */
static struct {
  _Alignas(kLineBytes) unsigned there;
  _Alignas(kLineBytes) unsigned back;
  _Alignas(kLineBytes) int answers_from;
} flags;

static double Nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    perror("cpu_distance: sched_setaffinity");
    exit(1);
  }
}

static void AwaitFlag(const unsigned* flag, unsigned value) {
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != value) {
  }
}

static void* Answer(void* unused) {
  unsigned trip;
  (void)unused;
  PinTo(flags.answers_from);
  for (trip = 1; trip <= (kBatches + 1) * kTrips; ++trip) {
    AwaitFlag(&flags.there, trip);
    __atomic_store_n(&flags.back, trip, __ATOMIC_RELEASE);
  }
  return NULL;
}

static int Compare(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

int main(int argc, char** argv) {
  double one_way[kBatches + 1], begin;
  pthread_t answering;
  unsigned trip = 0;
  int batch, i;
  if (argc != 3) {
    fprintf(stderr, "usage: cpu_distance FIRST_CPU SECOND_CPU\n");
    return 2;
  }
  PinTo(atoi(argv[1]));
  flags.answers_from = atoi(argv[2]);
  if (pthread_create(&answering, NULL, Answer, NULL) != 0) return 1;
  for (batch = 0; batch <= kBatches; ++batch) { /* The first one warms up: the other thread has to start. */
    begin = Nanoseconds();
    for (i = 0; i < kTrips; ++i) {
      ++trip;
      __atomic_store_n(&flags.there, trip, __ATOMIC_RELEASE);
      AwaitFlag(&flags.back, trip);
    }
    one_way[batch] = (Nanoseconds() - begin) / (2 * kTrips);
  }
  pthread_join(answering, NULL);
  qsort(one_way + 1, kBatches, sizeof(double), Compare);
  printf("%.1f\n", one_way[1 + kBatches / 2]);
  return 0;
}
