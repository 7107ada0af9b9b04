// PeerInfo: what each rank tells all others at bootstrap; and the checks that the ranks fit together.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "collectives/core/options.h"
#include "collectives/core/plan_settings.h"
#include "collectives/membership/core_set.h"

namespace annulus {

struct PeerInfo {
  std::string host_id;
  PlanSettings plan;
  int priorities = 0;                  // As in Options; must be equal everywhere, as
  uint64_t memory_bytes = 0;           // this.
  std::string transport;               // The setting; must be equal everywhere.
  std::string tuning;                  // Likewise.
  CoreSet cores;                       // On which its process may run.
  std::vector<std::string> addresses;  // By index in the list of transports; "" = not usable there.
  std::vector<std::string> further;    // As FurtherTexts() gives them.
};

// Longest text in a PeerInfo.
constexpr size_t kLargestPeerText = 256;

// The values of those settings on which ranks must agree that have no field of their own in a PeerInfo.
std::vector<std::string> FurtherTexts(const Options& options, std::span<const Setting> settings = Settings());

std::string Encode(const PeerInfo& info);

// Errors: kProtocol naming `rank` when `blob` is not an encoded PeerInfo with so many addresses.
Status Decode(const std::string& blob, int rank, size_t addresses, PeerInfo* info,
              std::span<const Setting> settings = Settings());

// Whether all have the same values of all settings on which ranks must agree.
// Errors: kMismatch naming the rank, the setting's variable and both values, compared with rank 0.
Status CheckAgreement(std::span<const PeerInfo> peers, std::span<const Setting> settings = Settings());

// As PlanSettings::host_of.
std::vector<int> FindHosts(std::span<const PeerInfo> peers);

// The cores of that host's ranks: ranks with the same cores share them, different ones do not overlap.
int HostCores(std::span<const PeerInfo> peers, const std::string& host_id);

// Of the host that has most; at least 1.
double MostRanksPerCore(std::span<const PeerInfo> peers);

// Position of `rank` among the ranks of its host, and their number.
void FindLocalRank(std::span<const PeerInfo> peers, int rank, int* local_rank, int* local_size);

}  // namespace annulus
