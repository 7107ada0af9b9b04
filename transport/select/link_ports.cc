#include "transport/select/link_ports.h"

#include "transport/select/select.h"
#include "transport/verbs/device/verbs_ports.h"
#include "transport/verbs/verbs.h"

namespace annulus {

size_t MostLinkPorts(const TransportOptions& options) {
  return Allows(FilterOf(Transports(), options), kVerbsTransport) ? MostPorts(options.verbs_device) : 1;
}

}  // namespace annulus
