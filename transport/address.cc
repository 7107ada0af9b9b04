#include "transport/address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "base/parse.h"
#include "base/thread.h"

namespace annulus {
namespace {

bool IsInternet(const StreamEndpoint& endpoint) {
  const int family = HasAddress(endpoint) ? endpoint.data()->sa_family : AF_UNSPEC;
  return family == AF_INET || family == AF_INET6;
}

asio::ip::tcp::endpoint ToTcp(const StreamEndpoint& endpoint) {
  asio::ip::tcp::endpoint tcp;
  std::memcpy(tcp.data(), endpoint.data(), std::min(endpoint.size(), tcp.capacity()));
  tcp.resize(endpoint.size());
  return tcp;
}

// One query to the system's resolver, which can neither be cancelled nor given a deadline.
struct Lookup {
  std::mutex mu;
  std::condition_variable changed;
  bool done = false;
  bool out_of_memory = false;
  std::string error;
  std::vector<StreamEndpoint> endpoints;
};

// Throws std::bad_alloc.
void AskResolver(const std::string& host, int port, Lookup* lookup) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(error == 0 ? found : nullptr, freeaddrinfo);
  std::lock_guard<std::mutex> lock(lookup->mu);
  if (error != 0) lookup->error = gai_strerror(error);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    lookup->endpoints.emplace_back(entry->ai_addr, entry->ai_addrlen);
  }
}

void LookUp(const std::string& host, int port, Lookup* lookup) {
  bool out_of_memory = false;
  try {
    AskResolver(host, port, lookup);
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  }
  std::lock_guard<std::mutex> lock(lookup->mu);
  lookup->out_of_memory = out_of_memory;
  lookup->done = true;
  lookup->changed.notify_all();
}

// Resolves in a separate thread, which is abandoned when the answer comes too late; for this reason the library stays
// loaded (collectives/BUILD, -z nodelete).
Status StartLookup(const std::string& host, int port, const std::shared_ptr<Lookup>& lookup) {
  std::thread thread;
  const auto look_up = [host, port, lookup] { LookUp(host, port, lookup.get()); };
  ANNULUS_RETURN_IF_ERROR(StartThread("a thread to look up the rendezvous", look_up, &thread));
  thread.detach();
  return Status();
}

}  // namespace

std::string EndpointText(const StreamEndpoint& endpoint) {
  if (!IsInternet(endpoint)) return HasAddress(endpoint) ? "a UNIX socket" : "an unknown address";
  const asio::ip::tcp::endpoint tcp = ToTcp(endpoint);
  return FormatAddress(tcp.address().to_string(), tcp.port());
}

std::string HostText(const StreamEndpoint& endpoint) {
  return IsInternet(endpoint) ? ToTcp(endpoint).address().to_string() : "";
}

bool IsLoopback(const StreamEndpoint& endpoint) {
  return IsInternet(endpoint) && ToTcp(endpoint).address().is_loopback();
}

bool IsUnspecified(const StreamEndpoint& endpoint) {
  return IsInternet(endpoint) && ToTcp(endpoint).address().is_unspecified();
}

int PortOf(const StreamEndpoint& endpoint) { return IsInternet(endpoint) ? ToTcp(endpoint).port() : 0; }

Status MakeEndpoint(const std::string& host, int port, StreamEndpoint* endpoint) {
  asio::error_code error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (error || port < 0 || port > 65535) {
    return Status::Invalid("\"" + host + "\" with port " + std::to_string(port) +
                           " is no numeric IPv4 or IPv6 address");
  }
  *endpoint = asio::ip::tcp::endpoint(address, static_cast<uint16_t>(port));
  return Status();
}

Status ParseEndpoint(const std::string& text, StreamEndpoint* endpoint) {
  std::string host;
  int port = 0;
  if (!ParseAddress(text, &host, &port)) {
    return Status::Invalid("\"" + text + "\" is not of the form address:port or [address]:port");
  }
  return MakeEndpoint(host, port, endpoint);
}

Status Resolve(const std::string& address, Deadline deadline, std::vector<StreamEndpoint>* endpoints) {
  StreamEndpoint numeric;
  if (ParseEndpoint(address, &numeric).ok()) {
    *endpoints = {numeric};
    return Status();
  }
  std::string host;
  int port = 0;
  if (!ParseAddress(address, &host, &port)) {
    return Status::Invalid("\"" + address + "\" is not of the form host:port or [address]:port");
  }
  auto lookup = std::make_shared<Lookup>();
  ANNULUS_RETURN_IF_ERROR(StartLookup(host, port, lookup));
  std::unique_lock<std::mutex> lock(lookup->mu);
  const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  if (!lookup->changed.wait_until(lock, until, [&lookup] { return lookup->done; }))
    return {Code::kTimeout, "looking up \"" + host + "\" took too long"};
  if (lookup->out_of_memory) return {Code::kOutOfMemory, "no memory was left to look up \"" + host + "\""};
  if (!lookup->error.empty() || lookup->endpoints.empty())
    return {Code::kSystem, "the host \"" + host + "\" cannot be looked up: " + lookup->error};
  *endpoints = std::move(lookup->endpoints);
  return Status();
}

bool IsOwnName(const std::string& address, const std::vector<StreamEndpoint>& endpoints) {
  StreamEndpoint numeric;
  if (endpoints.empty() || !std::ranges::all_of(endpoints, IsLoopback) || ParseEndpoint(address, &numeric).ok())
    return false;
  const auto has = [&address](const char* word) { return address.find(word) != std::string::npos; };
  return !has("localhost") && !has("loopback");
}

}  // namespace annulus
