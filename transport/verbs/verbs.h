// The verbs transport: links over InfiniBand or RoCE, between any two ranks whose hosts have an RDMA device.
#pragma once

#include <memory>

#include "transport/transport_info.h"
#include "transport/verbs/device/verbs_api.h"

namespace annulus {

extern const TransportInfo kVerbsTransport;

std::unique_ptr<Transport> CreateVerbsTransport(const TransportConfig& config);

// The same over another library than the machine's, such as a simulated one; null: there is none, for the reason `why`.
// `api` outlives the transport and its endpoints.
std::unique_ptr<Transport> CreateVerbsTransportOver(const VerbsApi* api, const std::string& why,
                                                    const TransportConfig& config);

}  // namespace annulus
