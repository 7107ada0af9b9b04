#include "collectives/launcher/job.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "base/options.h"

namespace annulus {

ReservedPort::~ReservedPort() {
  if (socket_ >= 0) close(socket_);
}

Status ReservedPort::Reserve() {
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_ < 0) return Status::System("cannot make a socket", errno);
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  if (setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      setsockopt(socket_, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0 ||
      bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    return Status::System("cannot reserve a port of 127.0.0.1 for the rendezvous", errno);
  }
  port_ = ntohs(address.sin_port);
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

Status Job::Prepare(const Arguments& arguments, const char* const* environment) {
  nranks_ = arguments.nranks;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    shared_.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  for (const auto& [name, value] : arguments.variables) shared_[name] = value;
  ANNULUS_RETURN_IF_ERROR(port_.Reserve());
  shared_["ANNULUS_RENDEZVOUS"] = FormatAddress("127.0.0.1", port_.port());
  std::string& key = shared_["ANNULUS_JOB_KEY"];
  if (key.empty()) key = MakeJobKey();
  if (key.empty()) return Status::System("cannot make a job key", errno);
  return CheckSettings();
}

Variables Job::VariablesOf(int rank) const {
  Variables variables = shared_;
  variables["ANNULUS_RANK"] = variables["ANNULUS_LOCAL_RANK"] = std::to_string(rank);
  variables["ANNULUS_SIZE"] = variables["ANNULUS_LOCAL_SIZE"] = std::to_string(nranks_);
  return variables;
}

std::vector<std::string> Job::EnvironmentOf(int rank) const {
  std::vector<std::string> entries;
  for (const auto& [name, value] : VariablesOf(rank)) entries.push_back(name + "=" + value);
  return entries;
}

Status Job::CheckSettings() const {
  const Variables variables = VariablesOf(0);
  const auto lookup = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  Options options;
  ANNULUS_RETURN_IF_ERROR(ReadEnvironment(lookup, &options));
  return Validate(options);
}

}  // namespace annulus
