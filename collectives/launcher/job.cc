#include "collectives/launcher/job.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "base/options.h"

namespace annulus {
namespace {

// A place that stands for the rendezvous while that is not known.
constexpr char kSomewhere[] = "127.0.0.1:1";

Status CheckSettings(const Variables& shared, int nranks) {
  Variables variables = shared;
  variables["ANNULUS_RANK"] = variables["ANNULUS_LOCAL_RANK"] = "0";
  variables["ANNULUS_SIZE"] = variables["ANNULUS_LOCAL_SIZE"] = std::to_string(nranks);
  variables.emplace("ANNULUS_RENDEZVOUS", kSomewhere);
  const auto lookup = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  Options options;
  ANNULUS_RETURN_IF_ERROR(ReadEnvironment(lookup, &options));
  return Validate(options);
}

// Binds a new socket of the family to a port of the address; -1 with errno when that fails.
int BindSharing(const sockaddr* address, socklen_t bytes) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0 && bind(fd, address, bytes) == 0) {
    return fd;
  }
  const int cause = errno;
  close(fd);
  errno = cause;
  return -1;
}

int BindSharingEverywhere(int family) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  return family == AF_INET6 ? BindSharing(reinterpret_cast<const sockaddr*>(&v6), sizeof v6)
                            : BindSharing(reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

ReservedPort::~ReservedPort() {
  if (socket_ >= 0) close(socket_);
}

Status ReservedPort::Reserve(const std::string& host) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const bool numeric = getaddrinfo(host.c_str(), "0", &hints, &found) == 0;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, [](addrinfo* list) {
    if (list != nullptr) freeaddrinfo(list);
  });
  if (numeric) socket_ = BindSharing(found->ai_addr, found->ai_addrlen);
  if (!numeric || (socket_ < 0 && errno == EADDRNOTAVAIL)) {
    socket_ = BindSharingEverywhere(numeric ? found->ai_family : AF_INET);
  }
  if (socket_ < 0) return Status::System("cannot reserve a port of " + host + " for the rendezvous", errno);
  port_ = PortOf(socket_);
  return {};
}

std::string MakeJobKey() {
  std::array<unsigned char, 32> random;
  size_t filled = 0;
  while (filled < random.size()) {
    const ssize_t got = getrandom(random.data() + filled, random.size() - filled, 0);
    if (got < 0 && errno != EINTR) return "";
    if (got > 0) filled += static_cast<size_t>(got);
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string key;
  for (const unsigned char byte : random) {
    key += kDigits[byte >> 4];
    key += kDigits[byte & 15];
  }
  return key;
}

Status Job::TakeAssignments(const Arguments& arguments, const Variables& environment) {
  for (const Assignment& assignment : arguments.variables) {
    const auto here = environment.find(assignment.name);
    if (!assignment.value && here == environment.end()) {
      return Status::Invalid("-x " + assignment.name + " passes on a variable that is not set here");
    }
    shared_[assignment.name] = assignment.value ? *assignment.value : here->second;
  }
  return {};
}

Status Job::TakeKey() {
  std::string& key = shared_["ANNULUS_JOB_KEY"];
  if (key.empty()) key = MakeJobKey();
  return key.empty() ? Status::System("cannot make a job key", errno) : Status();
}

Status Job::Prepare(const Arguments& arguments, const char* const* environment) {
  nranks_ = arguments.nranks;
  const Variables variables = ReadVariables(environment);
  shared_ = variables;
  ANNULUS_RETURN_IF_ERROR(TakeAssignments(arguments, variables));
  ANNULUS_RETURN_IF_ERROR(port_.Reserve("127.0.0.1"));
  shared_["ANNULUS_RENDEZVOUS"] = FormatAddress("127.0.0.1", port_.port());
  ANNULUS_RETURN_IF_ERROR(TakeKey());
  return CheckSettings(shared_, nranks_);
}

Status Job::PrepareForHosts(const Arguments& arguments, const char* const* environment) {
  nranks_ = arguments.nranks;
  const Variables variables = ReadVariables(environment);
  for (const auto& [name, value] : variables) {
    if (name.starts_with("ANNULUS_")) shared_.emplace(name, value);
  }
  for (const char* own : kOwnVariables) shared_.erase(own);
  shared_.erase("ANNULUS_HOST_ID");  // It names this host; given to all, they would take themselves for one.
  ANNULUS_RETURN_IF_ERROR(TakeAssignments(arguments, variables));
  ANNULUS_RETURN_IF_ERROR(TakeKey());
  return CheckSettings(shared_, nranks_);
}

std::vector<std::string> Job::EnvironmentOf(int rank) const {
  return RankEnvironment(shared_, {rank, nranks_, rank, nranks_});
}

}  // namespace annulus
