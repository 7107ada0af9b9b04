#include "collectives/membership/job_store.h"

#include <algorithm>

#include "collectives/membership/bootstrap_messages.h"

namespace annulus {
namespace {

std::string RankText(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

Status LeaveMeetingPoint(const JobStore& store, const std::string& key, const MeetingPoint& point) {
  const MeetingPointBytes bytes(point);
  const int outcome = store.set(key.c_str(), bytes.used());
  if (outcome == 0) return Status();
  return {Code::kSystem,
          "rank 0 could not put its address into the store: its set returned " + std::to_string(outcome) +
              " for key \"" + key + "\"",
          0, 0};
}

Status FindMeetingPoint(const JobStore& store, const std::string& key, int rank, Deadline deadline,
                        MeetingPoint* point) {
  const Nanoseconds start = Now();
  const int64_t timeout_ms = std::max<int64_t>((deadline - start + kMillisecond - 1) / kMillisecond, 1);
  MeetingPointBytes bytes;
  size_t used = 0;
  const int outcome = store.get(key.c_str(), bytes.room(), &used, timeout_ms);
  const Nanoseconds took = Now() - start;
  if (outcome != 0) {
    // A store tells a missing value from a failure by its time only. It may count that less exactly.
    if (took >= timeout_ms * kMillisecond / 10 * 9) {
      return {Code::kTimeout,
              "rank 0 did not put its address into the store within " + SecondsText(took) + "; " + RankText(rank) +
                  " waited for key \"" + key + "\"",
              0, 0};
    }
    return {Code::kSystem,
            RankText(rank) + " could not read the store: its get returned " + std::to_string(outcome) + " after " +
                SecondsText(took) + " for key \"" + key + "\"",
            rank, 0};
  }
  Status status = bytes.set_used(used);
  if (status.ok()) status = Decode(bytes.used(), point);
  if (status.ok()) return status;
  return {
      Code::kProtocol,
      "the store has something else under key \"" + key + "\", as " + RankText(rank) + " found: " + status.message(),
      rank, 0};
}

}  // namespace annulus
