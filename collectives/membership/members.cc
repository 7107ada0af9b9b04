#include "collectives/membership/members.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

namespace annulus {
namespace {

// Totals over the ranks of a host.
struct Host {
  int ranks = 0;
  std::set<CoreSet> sets;

  void Add(const Member& member) {
    ++ranks;
    sets.insert(member.cores);
  }
  int cores() const {
    constexpr uint64_t kMost = 1 << 20;  // The numbers come from peers.
    uint64_t sum = 0;
    for (const CoreSet& set : sets) sum += set.count;
    return static_cast<int>(std::clamp<uint64_t>(sum, 1, kMost));
  }
};

double MostRanksPerCore(std::span<const Member> members) {
  std::map<std::string_view, Host> hosts;
  for (const Member& member : members) hosts[member.host_id].Add(member);
  double most = 1;
  for (const auto& [id, host] : hosts) most = std::max(most, host.ranks / static_cast<double>(host.cores()));
  return most;
}

std::vector<int> FindHosts(std::span<const Member> members) {
  std::vector<int> host_of;
  std::map<std::string_view, int> numbers;
  for (const Member& member : members) {
    host_of.push_back(numbers.emplace(member.host_id, static_cast<int>(numbers.size())).first->second);
  }
  return host_of;
}

// The preferred transport among those that all ranks can use; if there is none, the last one that any rank can use.
// `far`: only transports that reach other hosts.
const TransportInfo* CommonTransport(TransportList transports, std::span<const Member> members, bool far) {
  const TransportInfo* last = nullptr;
  for (size_t i = 0; i < transports.size(); ++i) {
    if (far && transports[i]->same_host_only) continue;
    const auto can_use = [i](const Member& member) { return !member.addresses[i].empty(); };
    const auto is_reached = [&](const Member& member) {
      return can_use(member) && Reach(*transports[i], members[0].addresses[i], member.addresses[i]);
    };
    if (std::ranges::all_of(members, is_reached)) return transports[i];
    if (std::ranges::any_of(members, can_use)) last = transports[i];
  }
  return last;
}

// Whether messages of some pair of ranks cost system calls. Only the links to rank 0 are looked at: if none of them
// does, none does, but where rank 0's cards are in more networks than those of the others.
bool HasSystemCalls(TransportList transports, std::span<const Member> members) {
  for (size_t r = 1; r < members.size(); ++r) {
    int chosen = 0;
    const Status found = SelectTransport(transports, EndOf(members, 0), EndOf(members, static_cast<int>(r)), &chosen);
    if (!found.ok() || transports[chosen]->by_system_calls) return true;
  }
  return false;
}

}  // namespace

SelectEnd EndOf(std::span<const Member> members, int rank) {
  const Member& member = members[rank];
  return {rank, member.host_id, member.addresses, member.reasons};
}

Topology FindTopology(TransportList transports, std::span<const Member> members) {
  Topology topology(static_cast<int>(members.size()), FindHosts(members));
  topology.near = CommonTransport(transports, members, false);
  topology.far = CommonTransport(transports, members, true);
  topology.by_system_calls = HasSystemCalls(transports, members);
  topology.ranks_per_core = MostRanksPerCore(members);
  topology.have_devices = std::ranges::all_of(members, &Member::has_devices);
  return topology;
}

int HostCores(std::span<const Member> members, int rank) {
  Host host;
  for (const Member& member : members) {
    if (member.host_id == members[rank].host_id) host.Add(member);
  }
  return host.cores();
}

LocalPlace FindLocalPlace(std::span<const Member> members, int rank) {
  LocalPlace place{0, 0};
  for (size_t other = 0; other < members.size(); ++other) {
    if (members[other].host_id != members[rank].host_id) continue;
    if (static_cast<int>(other) < rank) ++place.rank;
    ++place.size;
  }
  return place;
}

}  // namespace annulus
