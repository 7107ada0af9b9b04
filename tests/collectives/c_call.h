// A Call, as the other tests describe collectives, made through the C API. Its sequence is not used.
#pragma once

#include <annulus.h>

#include "collectives/collective.h"

namespace annulus {

annulus_status_t RunCall(annulus_comm_t* comm, const Call& call, const void* in, void* out);
annulus_status_t SubmitCall(annulus_comm_t* comm, const Call& call, const void* in, void* out,
                            annulus_request_t** request);

}  // namespace annulus
