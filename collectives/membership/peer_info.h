// PeerInfo: the data that each rank sends to all others at bootstrap, and the checks that the ranks fit together.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "collectives/core/options.h"
#include "collectives/core/plan_settings.h"
#include "collectives/membership/members.h"

namespace annulus {

struct PeerInfo {
  Member member;
  PlanSettings plan;
  int priorities = 0;                // As in Options; must be equal on all ranks.
  uint64_t memory_bytes = 0;         // Must be equal on all ranks.
  std::string transport;             // The setting; must be equal on all ranks.
  std::string tuning;                // The setting; must be equal on all ranks.
  std::vector<std::string> further;  // Result of FurtherTexts().
};

// Longest text in a PeerInfo.
constexpr size_t kLargestPeerText = 256;
// Longest of Member::reasons; longer ones are cut.
constexpr size_t kLargestReason = 160;

// Values of the settings on which ranks must agree and that have no field of their own in a PeerInfo.
std::vector<std::string> FurtherTexts(const Options& options, std::span<const Setting> settings = Settings());

std::string Encode(const PeerInfo& info);

// Errors: kProtocol naming `rank` when `blob` is not an encoded PeerInfo with this many addresses and reasons.
Status Decode(const std::string& blob, int rank, size_t addresses, PeerInfo* info,
              std::span<const Setting> settings = Settings());

// Checks that all ranks have the same values of all settings on which they must agree.
// Errors: kMismatch naming the rank, the setting's variable and both values, compared with rank 0.
Status CheckAgreement(std::span<const PeerInfo> peers, std::span<const Setting> settings = Settings());

}  // namespace annulus
