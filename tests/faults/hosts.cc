#include "tests/faults/hosts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/check.h"

extern char** environ;

namespace annulus {
namespace {

// Runs `tool` with these words, in the namespace of the calling thread; its status, or -1 when it is not to be found.
int Run(const std::string& tool, std::vector<std::string> words) {
  words.insert(words.begin(), tool);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  for (const char* folder : {"/usr/sbin/", "/sbin/", "/usr/bin/"}) {
    pid_t pid = -1;
    const std::string path = folder + tool;
    if (access(path.c_str(), X_OK) != 0 || posix_spawn(&pid, path.c_str(), nullptr, nullptr, argv.data(), environ) != 0)
      continue;
    int status = 0;
    ANNULUS_CHECK(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  return -1;
}

int Ip(std::vector<std::string> words) { return Run("ip", std::move(words)); }

// The packet filter takes one text, however many words it has.
int Filter(const std::string& command) { return Run("nft", {command}); }

// The namespace of the calling thread: the process's main thread may be in another.
int OwnNamespace(int flags) { return open("/proc/thread-self/ns/net", O_RDONLY | flags); }

std::string Interface(int host) { return "cable" + std::to_string(host); }

}  // namespace

std::unique_ptr<Hosts> Hosts::Create(std::string* why) {
  std::unique_ptr<Hosts> hosts(new Hosts());
  if (!hosts->Build(why)) return nullptr;
  return hosts;
}

bool Hosts::Build(std::string* why) {
  home_ = OwnNamespace(O_CLOEXEC);
  if (home_ < 0) return *why = std::string("no network namespaces here: ") + std::strerror(errno), false;
  for (int& host : namespaces_) {
    if (unshare(CLONE_NEWNET) != 0) {
      *why = std::string("may not create network namespaces (not root?): ") + std::strerror(errno);
      return false;
    }
    host = OwnNamespace(0);  // Not close-on-exec: ip(8) finds it among its own descriptors.
    ANNULUS_CHECK(host >= 0);
  }
  Enter(0);
  const std::string other = "/proc/self/fd/" + std::to_string(namespaces_[1]);
  if (Ip({"link", "add", Interface(0), "type", "veth", "peer", "name", Interface(1), "netns", other}) != 0) {
    *why = "cannot create a veth pair (no iproute2, or no veth in this kernel?)";
    return false;
  }
  for (int host = 0; host < kHosts; ++host) {
    fcntl(namespaces_[host], F_SETFD, FD_CLOEXEC);
    Enter(host);
    if (Ip({"address", "add", Address(host) + "/24", "dev", Interface(host)}) == 0 &&
        Ip({"link", "set", "lo", "up"}) == 0 && Ip({"link", "set", Interface(host), "up"}) == 0) {
      continue;
    }
    *why = "cannot set up " + Interface(host);
    return false;
  }
  return true;
}

Hosts::~Hosts() {
  // Within a user namespace, such as Bazel's sandbox, there may be no way back; then the process's end ends the rest.
  if (home_ >= 0 && setns(home_, CLONE_NEWNET) != 0) ANNULUS_CHECK(errno == EPERM);
  for (const int fd : {home_, namespaces_[0], namespaces_[1]}) {
    if (fd >= 0) close(fd);
  }
}

void Hosts::Enter(int host) { ANNULUS_CHECK(setns(namespaces_[host], CLONE_NEWNET) == 0); }

void Hosts::CutCable(int host) {
  Enter(host);
  ANNULUS_CHECK(Ip({"link", "set", Interface(host), "down"}) == 0);
}

void Hosts::JoinCable(int host) {
  Enter(host);
  ANNULUS_CHECK(Ip({"link", "set", Interface(host), "up"}) == 0);
}

bool Hosts::LoseAnyPackets(int host, int port) {
  Enter(host);
  const std::string packets = port > 0 ? "tcp sport " + std::to_string(port) : "";
  const std::string answers = port > 0 ? "tcp dport " + std::to_string(port) : "";
  std::string commands = "add table inet loss;";
  for (const std::string way : {"input", "output"}) {
    commands += "add chain inet loss " + way + " { type filter hook " + way + " priority 0 ; };";
    commands += "add rule inet loss " + way + " " + packets + " drop;";
    if (port > 0) commands += "add rule inet loss " + way + " " + answers + " drop;";
  }
  return Filter(commands) == 0;
}

bool Hosts::LosePortAndNewConnections(int host, int port) {
  const std::string attempts = " tcp flags & (syn | ack) == syn drop;";
  return LoseAnyPackets(host, port) &&
         Filter("add rule inet loss input" + attempts + "add rule inet loss output" + attempts) == 0;
}

void Hosts::LoseNoPackets(int host) {
  Enter(host);
  ANNULUS_CHECK(Filter("delete table inet loss") == 0);
}

// As /proc/net/tcp writes them: addresses and ports in hexadecimal digits, the former as they lie in memory.
std::vector<Hosts::Ports> Hosts::ConnectionsToTheOther(int host, int but_port) {
  constexpr uint32_t kEstablished = 1;
  Enter(host);
  std::ifstream list("/proc/thread-self/net/tcp");
  std::vector<Ports> found;
  std::string line;
  std::getline(list, line);  // The heading.
  while (std::getline(list, line)) {
    std::string number, own, other, state;
    std::istringstream(line) >> number >> own >> other >> state;
    const auto hexadecimal = [](const std::string& digits) {
      return static_cast<uint32_t>(std::stoul(digits, nullptr, 16));
    };
    const Ports ports = {static_cast<int>(hexadecimal(own.substr(9))), static_cast<int>(hexadecimal(other.substr(9)))};
    const bool is_meant = hexadecimal(other.substr(0, 8)) == inet_addr(Address(1 - host).c_str());
    if (is_meant && hexadecimal(state) == kEstablished && ports.own != but_port && ports.other != but_port) {
      found.push_back(ports);
    }
  }
  return found;
}

bool Hosts::ForgetOtherConnections(int host, int port) {
  std::string commands = "add table inet forgotten; flush table inet forgotten;";
  for (const std::string way : {"input", "output"}) {
    commands += "add chain inet forgotten " + way + " { type filter hook " + way + " priority 0 ; };";
  }
  for (const Ports& ports : ConnectionsToTheOther(host, port)) {
    const std::string own = std::to_string(ports.own), other = std::to_string(ports.other);
    commands += "add rule inet forgotten output tcp sport " + own + " tcp dport " + other + " drop;";
    commands += "add rule inet forgotten input tcp sport " + other + " tcp dport " + own + " drop;";
  }
  return Filter(commands) == 0;
}

// Without a table of connections in the kernel: the rules rewrite each packet.
bool Hosts::MoveOtherConnections(int host, int port) {
  constexpr int kFirstNewPort = 20000;  // Below those that a kernel chooses.
  std::string commands = "add table inet moved; flush table inet moved;";
  for (const std::string way : {"input", "output"}) {
    commands += "add chain inet moved " + way + " { type filter hook " + way + " priority -300 ; };";
  }
  int next = kFirstNewPort;
  for (const Ports& ports : ConnectionsToTheOther(host, port)) {
    const std::string own = std::to_string(ports.own), moved = std::to_string(next++);
    commands += "add rule inet moved output tcp sport " + own + " tcp sport set " + moved + ";";
    commands += "add rule inet moved input tcp dport " + moved + " tcp dport set " + own + ";";
  }
  return Filter(commands) == 0;
}

void Hosts::ResetConnections(int host, int port) {
  Enter(host);
  const std::string number = ":" + std::to_string(port);
  ANNULUS_CHECK(Run("ss", {"-K", "-t", "-n", "-H", "( sport = " + number + " or dport = " + number + " )"}) == 0);
}

void Hosts::ResetOtherConnections(int host, int port) {
  Enter(host);
  const std::string number = ":" + std::to_string(port);
  const std::string others = "( sport != " + number + " and dport != " + number + " )";
  ANNULUS_CHECK(Run("ss", {"-K", "-t", "-n", "-H", "state", "established", others}) == 0);
}

}  // namespace annulus
