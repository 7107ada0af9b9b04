// The choice of the probe, and its measurement.
//
// Threads: see perf_limit.h.
#include "bench/perf/limit/perf_limit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>

#include "bench/perf/limit/perf_limit_copy.h"
#include "bench/perf/limit/perf_limit_socket.h"
#include "bench/perf/limit/perf_limit_verbs.h"
#include "transport/select/select.h"

namespace annulus::perf {
namespace {

// Less than a row's own forms get: every row of the same size shares the result.
constexpr Effort kEffort = {3, 0, 0.1};
constexpr size_t kLatencyBytes = 8;

// All data of a gather or scatter passes through one rank, while the probes load all ranks alike.
bool HasLimit(Kind kind) { return kind != Kind::kGather && kind != Kind::kScatter && kind != Kind::kBarrier; }

uint64_t Fnv1a(std::string_view text, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// Equal on two ranks that share a host: its boot and network namespace, or the id that the user gave.
uint64_t HostIdentity(const annulus_config_t& config) {
  std::string host_id;
  if (ReadSetting(config, "host_id", &host_id).ok() && !host_id.empty()) return Fnv1a(host_id);
  std::array<char, 64> boot{};
  const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    const ssize_t length = read(file, boot.data(), boot.size() - 1);
    boot[length > 0 ? static_cast<size_t>(length) : 0] = '\0';
    close(file);
  }
  struct stat network {};
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return Fnv1a(std::to_string(network.st_ino), Fnv1a(boot.data()));
}

Status GatherHosts(Group& group, const annulus_config_t& config, std::vector<uint64_t>* hosts) {
  const uint64_t identity = HostIdentity(config);
  const int32_t words[] = {static_cast<int32_t>(identity), static_cast<int32_t>(identity >> 32)};
  std::vector<int32_t> all;
  ANNULUS_RETURN_IF_ERROR(group.Allgather(words, &all));
  for (size_t i = 0; i < all.size(); i += 2) {
    hosts->push_back(static_cast<uint32_t>(all[i]) | (uint64_t{static_cast<uint32_t>(all[i + 1])} << 32));
  }
  return Status();
}

// By rank, the transport of its link to the next rank, as an index in Transports().
Status GatherLinks(Group& group, std::vector<int32_t>* links) {
  annulus_peer_counters_t next{};
  next.struct_bytes = sizeof next;
  const annulus_status_t status = annulus_comm_peer_counters(group.comm(), (group.rank() + 1) % group.size(), &next);
  const TransportList list = Transports();
  const auto found = std::ranges::find(list, FindTransport(list, status == ANNULUS_OK ? next.transport : ""));
  const auto own = static_cast<int32_t>(found - list.begin());
  ANNULUS_RETURN_IF_ERROR(group.Allgather({&own, 1}, links));
  if (std::ranges::all_of(*links,
                          [&](int32_t link) { return link >= 0 && link < static_cast<int32_t>(list.size()); })) {
    return Status();
  }
  return {Code::kInternal, "a rank does not know the transport of its link to the next one"};
}

// Titles of the transports among `links`, in the order of the list.
std::string TitlesOf(const std::vector<int32_t>& links) {
  std::string titles;
  for (int32_t i = 0; i < static_cast<int32_t>(Transports().size()); ++i) {
    if (std::ranges::count(links, i) > 0) titles += (titles.empty() ? "" : ", ") + std::string(Transports()[i]->title);
  }
  return titles;
}

// By rank, whether the transport of its link to the next rank is of that kind.
std::vector<bool> EdgesOf(const std::vector<int32_t>& links, bool TransportInfo::*kind) {
  std::vector<bool> edges;
  for (const int32_t link : links) edges.push_back(Transports()[static_cast<size_t>(link)]->*kind);
  return edges;
}

}  // namespace

Pattern PatternOf(Kind kind) {
  if (kind == Kind::kPingpong) return Pattern::kPingpong;
  return HasRoot(kind) ? Pattern::kChain : Pattern::kRing;
}

Status Limit::Create(Group& group, const annulus_config_t& config, Arena arena, bool wanted,
                     std::unique_ptr<Limit>* result) {
  std::unique_ptr<Limit> limit(new Limit());
  std::vector<uint64_t> hosts;
  ANNULUS_RETURN_IF_ERROR(GatherHosts(group, config, &hosts));
  limit->hosts_ = static_cast<int>(std::set<uint64_t>(hosts.begin(), hosts.end()).size());
  if (group.size() == 1) {
    limit->links_ = "none";
    limit->description_ = "none: one rank has no links";
  } else {
    std::vector<int32_t> links;
    ANNULUS_RETURN_IF_ERROR(GatherLinks(group, &links));
    limit->links_ = TitlesOf(links);
    limit->description_ = "not measured";
    if (wanted) ANNULUS_RETURN_IF_ERROR(limit->SetUpProbe(group, config, arena, links));
  }
  *result = std::move(limit);
  return Status();
}

Status Limit::SetUpProbe(Group& group, const annulus_config_t& config, Arena arena, const std::vector<int32_t>& links) {
  std::string why_not;
  const std::vector<bool> socket_edges = EdgesOf(links, &TransportInfo::by_system_calls);
  const std::vector<bool> device_edges = EdgesOf(links, &TransportInfo::needs_device);
  if (std::ranges::count(socket_edges, true) > 0) {
    ANNULUS_RETURN_IF_ERROR(SocketProbe::Create(group, config, socket_edges, arena, &probe_, &why_not));
  } else if (std::ranges::count(device_edges, true) > 0) {
    ANNULUS_RETURN_IF_ERROR(VerbsProbe::Create(group, config, device_edges, arena, &probe_, &why_not));
  } else {
    ANNULUS_RETURN_IF_ERROR(CopyProbe::Create(group, arena, &probe_));
  }
  description_ = probe_ ? probe_->Description() : "none: " + why_not;
  return Measure(group, Kind::kAllreduce, kLatencyBytes, 1, &latency_us_);
}

Status Limit::Measure(Group& group, Kind kind, size_t bytes, int calls, double* median_us) {
  *median_us = 0;
  if (!probe_ || !HasLimit(kind)) return Status();
  const size_t pass_bytes = probe_->PassBytes(kind, bytes * static_cast<size_t>(calls), group.size());
  if (pass_bytes == 0) return Status();
  const auto [measured, is_new] = measured_.try_emplace({PatternOf(kind), pass_bytes}, 0);
  for (int variant = 0; is_new && variant < probe_->Variants(pass_bytes); ++variant) {
    Timing timing;
    const Pass pass = [&] { return probe_->Pass(kind, pass_bytes, variant); };
    ANNULUS_RETURN_IF_ERROR(annulus::perf::Measure(group, kEffort, pass, &timing));
    measured->second = variant == 0 ? timing.median_us : std::min(measured->second, timing.median_us);
  }
  *median_us = measured->second / calls * TimeFactor(kind);
  return Status();
}

}  // namespace annulus::perf
