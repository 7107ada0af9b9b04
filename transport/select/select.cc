#include "transport/select/select.h"

#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

constexpr Backend kBackends[] = {
    {"shm", true, CreateShmTransport},
    {"tcp", false, CreateTcpTransport},
};

}  // namespace

std::span<const Backend> Backends() { return kBackends; }

bool Allows(const std::string& setting, const Backend& backend) { return setting == "auto" || setting == backend.name; }

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
