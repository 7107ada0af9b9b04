// A Call, as the other tests describe collectives, made through the C API. Its sequence is not used.
#pragma once

#include <annulus.h>

#include "collectives/core/collective.h"

namespace annulus {

annulus_status_t RunCall(annulus_comm_t* comm, const Call& call, const void* in, void* out);
annulus_status_t SubmitCall(annulus_comm_t* comm, const Call& call, const void* in, void* out,
                            annulus_request_t** request);

// The same for a kind whose buffers hold a part for every rank; call.count is the own part's. Null arrays as in
// annulus.h. With a request: asynchronous.
struct PartsCall {
  Call call;
  const void* in = nullptr;
  void* out = nullptr;
  const size_t* send_counts = nullptr;
  const size_t* send_offsets = nullptr;
  const size_t* recv_counts = nullptr;
  const size_t* recv_offsets = nullptr;
};
annulus_status_t RunPartsCall(annulus_comm_t* comm, const PartsCall& parts);
annulus_status_t SubmitPartsCall(annulus_comm_t* comm, const PartsCall& parts, annulus_request_t** request);

}  // namespace annulus
