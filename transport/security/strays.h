// Strays: counts the connections that were dropped while a rank was accepting, and logs one line per reason.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "transport/security/stream_handshake.h"

namespace annulus {

class Strays {
 public:
  enum Reason {
    kWrongKey,
    kNoHello,
    kOtherRun,
    kUnlike,
    kSlow,
    kLeft,
    kLeftUnproven,
    kDuplicate,
    kUnexpected,
    kOtherUser,
    kCrowded,
    kReasons
  };

  explicit Strays(int rank) : rank_(rank) {}

  void Add(Reason reason, const std::string& from, const std::string& detail) {
    if (++counts_[reason] > 1) return;
    Log(LogLevel::kWarn, rank_, "dropped a connection from %s (%s): %s", from.c_str(), Name(reason), detail.c_str());
  }

  // Logs one line with all counts, unless each dropped connection was already logged.
  void LogSummary() const {
    std::string text;
    uint64_t total = 0;
    uint64_t reasons = 0;
    for (int i = 0; i < kReasons; ++i) {
      if (counts_[i] == 0) continue;
      total += counts_[i];
      ++reasons;
      text += (text.empty() ? "" : ", ") + std::to_string(counts_[i]) + " " + Name(static_cast<Reason>(i));
    }
    if (total == reasons) return;
    Log(LogLevel::kWarn, rank_, "dropped %s connections while connecting: %s", std::to_string(total).c_str(),
        text.c_str());
  }

  // Why a peer whose handshake failed was dropped; for those that kept to the rules, see Handshake.
  static Reason ReasonOf(const StreamHandshake& handshake, const Status& status) {
    const auto refused = handshake.refused();
    if (refused == Handshake::Refused::kOtherRun || refused == Handshake::Refused::kEarlierRun) return kOtherRun;
    if (refused == Handshake::Refused::kUnlike) return kUnlike;
    if (status.code() == Code::kAuth) return kWrongKey;
    if (status.code() == Code::kPeerLost) return handshake.owes_proof() ? kLeftUnproven : kLeft;
    return kNoHello;
  }

  uint64_t count(Reason reason) const { return counts_[reason]; }

 private:
  static const char* Name(Reason reason) {
    switch (reason) {
      case kWrongKey:
        return "wrong job key";
      case kNoHello:
        return "no valid hello";
      case kOtherRun:
        return "another run";
      case kUnlike:
        return "another ANNULUS_ENCRYPT";
      case kSlow:
        return "too slow";
      case kLeft:
        return "left early";
      case kLeftUnproven:  // Got this rank's proof: perhaps a rank with another job key, not a mere port scan.
        return "left without proof";
      case kDuplicate:
        return "rank already connected";
      case kUnexpected:
        return "rank not expected";
      case kOtherUser:
        return "another user";
      case kCrowded:
        return "too many unproven";
      case kReasons:
        break;
    }
    return "unknown";
  }

  const int rank_;
  std::array<uint64_t, kReasons> counts_{};  // For as long as the door is open, which may be months.
};

}  // namespace annulus
