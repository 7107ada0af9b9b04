#include "transport/select/select.h"

#include <algorithm>
#include <string_view>

#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

constexpr Backend kBackends[] = {
    {kShmName, true, CreateShmTransport},
    {kTcpName, false, CreateTcpTransport},
};

// What ANNULUS_TRANSPORT may be is "auto" and the backends, in their order.
static_assert(std::ranges::equal(kBackends, std::span(kTransportWords).subspan(1),
                                 [](const Backend& backend, std::string_view word) { return backend.name == word; }));

}  // namespace

std::span<const Backend> Backends() { return kBackends; }

const Backend* ChosenBackend(TransportChoice choice) {
  return choice == TransportChoice::kAuto ? nullptr : &kBackends[static_cast<size_t>(choice) - 1];
}

Status SelectBackend(const SelectEnd& left, const SelectEnd& right, int* index) {
  const bool same_host = left.host_id == right.host_id;
  std::string why;
  for (size_t i = 0; i < Backends().size(); ++i) {
    const Backend& backend = Backends()[i];
    if (backend.same_host_only && !same_host) {
      why += std::string(" ") + backend.name + " needs one host;";
    } else if (left.addresses[i].empty() || right.addresses[i].empty()) {
      const int rank = left.addresses[i].empty() ? left.rank : right.rank;
      why += std::string(" ") + backend.name + " is off or not usable at rank " + std::to_string(rank) + ";";
    } else {
      *index = static_cast<int>(i);
      return Status();
    }
  }
  return {Code::kUnsupported,
          "no transport connects rank " + std::to_string(left.rank) + " and rank " + std::to_string(right.rank) + ":" +
              why + " check ANNULUS_TRANSPORT",
          right.rank, 0};
}

}  // namespace annulus
