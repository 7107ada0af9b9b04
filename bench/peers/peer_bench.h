/* A library under comparison: float32 sum allreduce, out of place or in place. peer_calls.h asks for more of it.
 *
 * One thread. All functions end the process with a message when they fail. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Joins the job; may take words of its own off the end of the arguments. */
void PeerStart(int* argc, char*** argv, int* rank, int* size);
/* recv = sum of send over ranks; in place when both are equal. */
void PeerAllreduce(const float* send, float* recv, size_t count);
void PeerStop(void);

#ifdef __cplusplus
}
#endif
