#include "transport/select/transport_set.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "transport/continuable.h"
#include "transport/resume/resuming_endpoint.h"
#include "transport/security/door.h"

namespace annulus {

Status TransportSet::Listen(const TransportConfig& config, Offer* offer) {
  config_ = config;
  config_.continues = ContinuingTransport(list_) != nullptr;
  std::string why;
  bool any = false;
  for (const TransportInfo* info : list_) {
    transports_.push_back(nullptr);
    std::string& address = offer->addresses.emplace_back();
    std::string& reason = offer->reasons.emplace_back();
    if (!Allows(filter_, *info)) continue;
    std::unique_ptr<Transport> transport = info->create(config_);
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
    if (const std::string devices = transport->Devices(); !devices.empty()) {
      offer->devices += (offer->devices.empty() ? "" : "; ") + std::string(info->title) + " " + devices;
    }
    transports_.back() = std::move(transport);
    any = true;
  }
  if (any) return Status();
  return {Code::kUnsupported, "no transport is usable at rank " + std::to_string(config.rank) + ":" + why};
}

Status TransportSet::Connect(std::vector<std::vector<LinkRequest>> wanted, ConnectContext context, Owner* owner) {
  for (size_t t = 0; t < wanted.size(); ++t) {
    if (transports_[t] == nullptr) continue;
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    std::vector<std::pair<size_t, std::string>> refused;
    context.refused = [&refused](size_t link, const std::string& why) { refused.emplace_back(link, why); };
    // Also called when no links are wanted: it stops listening.
    ANNULUS_RETURN_IF_ERROR(transports_[t]->Connect(wanted[t], context, &endpoints));
    for (size_t i = 0; i < endpoints.size(); ++i) {
      if (endpoints[i] == nullptr) continue;
      owner->OnLink(t, wanted[t][i], MayGoOn(wanted[t][i], std::move(endpoints[i])));
    }
    for (const auto& [index, why] : refused) {
      size_t other = t;
      LinkRequest link = wanted[t][index];
      ANNULUS_RETURN_IF_ERROR(owner->Replace(&other, &link, why));
      ANNULUS_CHECK(other > t);
      wanted[other].push_back(std::move(link));
    }
  }
  return Status();
}

std::unique_ptr<Endpoint> TransportSet::MayGoOn(const LinkRequest& link, std::unique_ptr<Endpoint> endpoint) const {
  if (endpoint->shortcuts().continuable == nullptr) return endpoint;
  const TransportInfo* const other = ContinuingTransport(list_);
  // The second link is made by whoever drives the first one, and a device may have to pin slots, which may wait for
  // streams that wait for this thread. So its slots are ordinary memory.
  TransportConfig plain = config_;
  plain.slot_memory = nullptr;
  const auto go_on = [config = std::move(plain), other, link](LinkStream stream, std::unique_ptr<Endpoint>* second) {
    return other->over_stream(config, link, std::move(stream), second);
  };
  return std::make_unique<ResumingEndpoint>(std::move(endpoint), config_.rank, go_on);
}

}  // namespace annulus
