#include "bench/endpoint_pair.h"

#include <unistd.h>

#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "transport/closing.h"
#include "transport/select/select.h"

namespace annulus::perf {
namespace {

constexpr Nanoseconds kPatience = 10 * kSecond;

Status ConnectSide(Transport& transport, int peer, const std::string& address, std::unique_ptr<Endpoint>* endpoint) {
  ConnectContext context;
  context.identity.job = static_cast<uint64_t>(getpid());
  context.deadline = DeadlineAfter(kPatience);
  const LinkRequest request{peer, 0, true, address};
  std::vector<std::unique_ptr<Endpoint>> made;
  ANNULUS_RETURN_IF_ERROR(transport.Connect({&request, 1}, context, &made));
  *endpoint = std::move(made[0]);
  return Status();
}

}  // namespace

Status EndpointPair::Open(const std::string& name, size_t slot_bytes, std::unique_ptr<EndpointPair>* result) {
  const TransportInfo* const transport = FindTransport(Transports(), name);
  if (transport == nullptr) return Status::Invalid("no transport is called " + name);
  std::unique_ptr<EndpointPair> pair(new EndpointPair());
  std::array<std::string, 2> addresses;
  for (size_t side = 0; side < 2; ++side) {
    TransportConfig config;
    config.rank = static_cast<int>(side);
    config.nranks = 2;
    config.job_key = "both ends of a benchmark";
    config.slot_bytes = slot_bytes;
    config.local_host = "127.0.0.1";
    config.reactor = &pair->reactors_[side];
    pair->transports_[side] = transport->create(config);
    ANNULUS_RETURN_IF_ERROR(pair->transports_[side]->LocalAddress(&addresses[side]));
  }
  Status other;
  std::thread connecting([&] { other = ConnectSide(*pair->transports_[1], 0, addresses[0], &pair->endpoints_[1]); });
  const Status own = ConnectSide(*pair->transports_[0], 1, addresses[1], &pair->endpoints_[0]);
  connecting.join();
  ANNULUS_RETURN_IF_ERROR(own);
  ANNULUS_RETURN_IF_ERROR(other);
  *result = std::move(pair);
  return Status();
}

EndpointPair::~EndpointPair() { CloseEndpoints(endpoints_); }

}  // namespace annulus::perf
