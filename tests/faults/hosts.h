// Hosts: two network namespaces joined by a cable (a veth pair), as near as one machine comes to two hosts.
//
// The namespaces have no names: they end with the last process in them and with this object.
// Threads: one; it is the calling thread that moves between the namespaces, with the processes that it starts.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace annulus {

class Hosts {
 public:
  static constexpr int kHosts = 2;

  // Null where the system does not permit it or lacks the tools; `why` says so.
  static std::unique_ptr<Hosts> Create(std::string* why);
  // The calling thread goes back to where it was, if it may.
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  // Moves the calling thread to a host.
  void Enter(int host);

  // Takes the interface of `host` down: nothing gets out or in any more, and neither side is told so by a packet.
  void CutCable(int host);

  // Takes it up again.
  void JoinCable(int host);

  // From now on `host` loses every packet of TCP port `port`, in both directions; 0: every packet at all. False where
  // there is no packet filter.
  [[nodiscard]] bool LoseAnyPackets(int host, int port);
  // The same, and every attempt to connect: connections of other ports stay, and no new ones are made.
  [[nodiscard]] bool LosePortAndNewConnections(int host, int port);
  void LoseNoPackets(int host);

  // Resets all connections of `host` that are from or to `port`, as a firewall that restarts does.
  void ResetConnections(int host, int port);

  // The same for all connections of `host` but those from or to `port`.
  void ResetOtherConnections(int host, int port);

  // What a firewall or a translator of addresses between the hosts may do to the connections that there are, except
  // those from or to `port`. Connections that are made later are not touched. False where there is no packet filter.
  // Forgets them: drops their packets from now on.
  [[nodiscard]] bool ForgetOtherConnections(int host, int port);
  // Gives the ends that `host` has dialled from other ports.
  [[nodiscard]] bool MoveOtherConnections(int host, int port);

  // The address of `host` on the cable.
  static std::string Address(int host) { return "10.77.0." + std::to_string(host + 1); }

 private:
  Hosts() = default;
  bool Build(std::string* why);
  struct Ports {
    int own = 0;
    int other = 0;
  };
  std::vector<Ports> ConnectionsToTheOther(int host, int but_port);

  int home_ = -1;
  std::array<int, kHosts> namespaces_ = {-1, -1};
};

}  // namespace annulus
