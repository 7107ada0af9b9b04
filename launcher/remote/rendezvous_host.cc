#include "launcher/remote/rendezvous_host.h"

#include <algorithm>
#include <sstream>

namespace annulus {
namespace {

constexpr char kAdvice[] = "; give --rendezvous-host";

bool IsLoopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

}  // namespace

Status FindRendezvousHost(const std::vector<Placement>& placements, const std::vector<std::string>& ssh_connections,
                          std::string* host) {
  if (placements.size() == 1) {
    *host = "127.0.0.1";
    return {};
  }
  const Placement& first = placements.front();
  const auto known = std::ranges::find_if(ssh_connections, [](const std::string& text) { return !text.empty(); });
  std::istringstream fields(first.here && known != ssh_connections.end() ? *known : ssh_connections.front());
  std::string our_address;
  std::string our_port;
  std::string its_address;
  fields >> our_address >> our_port >> its_address;
  const std::string& address = first.here ? our_address : its_address;
  const std::string which = "the address of " + first.host + " for the other hosts";
  if (address.empty()) return Status::Invalid(which + " is not known" + kAdvice);
  if (IsLoopback(address) || address.find('%') != std::string::npos) {
    return Status::Invalid(which + " is not " + address + ", at which ssh reached it" + kAdvice);
  }
  *host = address;
  return {};
}

}  // namespace annulus
