/* The measurement that every library under comparison runs: float32 sum allreduce, out of place or in place.
 *
 * Each library's driver provides the four functions below; the loop, the data and the check are the same for all. Times
 * are the slowest rank's mean over a batch. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

void PeerStart(int* argc, char*** argv, int* rank, int* size);
/* recv = sum of send over ranks; in place when both are equal. Ends the process with a message on failure. */
void PeerAllreduce(const float* send, float* recv, size_t count);
/* The largest value over ranks, on all ranks. */
double PeerMax(double value);
void PeerStop(void);

#ifdef __cplusplus
}
#endif
