#include "transport/select/transport_set.h"

#include <utility>

#include "base/log.h"
#include "transport/security/door.h"

namespace annulus {

Status TransportSet::Listen(const TransportConfig& config, Offer* offer) {
  std::string why;
  bool any = false;
  for (const TransportInfo* info : list_) {
    transports_.push_back(nullptr);
    std::string& address = offer->addresses.emplace_back();
    std::string& reason = offer->reasons.emplace_back();
    if (!Allows(filter_, *info)) continue;
    std::unique_ptr<Transport> transport = info->create(config);
    Status usable = transport->Probe();
    if (usable.ok()) usable = transport->LocalAddress(&address);
    if (IsOutOfDescriptors(usable.os_errno())) return usable;
    if (!usable.ok()) {
      address.clear();
      reason = usable.message();
      why += std::string(" ") + info->name + ": " + usable.message() + ";";
      Log(LogLevel::kInfo, config.rank, "transport %s is not usable here: %s", info->name, usable.message().c_str());
      continue;
    }
    transports_.back() = std::move(transport);
    any = true;
  }
  if (any) return Status();
  return {Code::kUnsupported, "no transport is usable at rank " + std::to_string(config.rank) + ":" + why};
}

Status TransportSet::Connect(std::span<const std::vector<LinkRequest>> wanted, const ConnectContext& context,
                             const Made& made) {
  for (size_t t = 0; t < wanted.size(); ++t) {
    if (transports_[t] == nullptr) continue;
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    // Also called when no links are wanted: it stops listening.
    ANNULUS_RETURN_IF_ERROR(transports_[t]->Connect(wanted[t], context, &endpoints));
    for (size_t i = 0; i < endpoints.size(); ++i) made(t, wanted[t][i], std::move(endpoints[i]));
  }
  return Status();
}

}  // namespace annulus
