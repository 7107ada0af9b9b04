#include "collectives/comm/introduction.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/parse.h"
#include "collectives/membership/local_host.h"
#include "transport/forked_child.h"
#include "transport/reserved_port.h"
#include "transport/security/door.h"

namespace annulus {
namespace {

// Interval at which the store is asked whether rank 0 has moved, until the ranks have met.
constexpr Nanoseconds kLookAgain = 200 * kMillisecond;
// Time that a store has for a value that is there already.
constexpr Nanoseconds kLookUpLimit = kSecond;

Membership AllRanksOf(const Options& options) { return Membership(static_cast<int>(options.size)); }

// Checks what does not depend on the introduction, before anyone waits.
Status CheckGiven(const Options& options) {
  Options complete = options;
  complete.rendezvous = "0.0.0.0:1";
  complete.insecure = true;
  complete.encrypt = Encryption::kOff;  // Whether there is a key turns out later.
  return Validate(complete);
}

Status CreateAsHost(const Introduction& introduction, const Options& options, const Resources& resources,
                    std::unique_ptr<Communicator>* communicator) {
  Options own = options;
  std::string host;
  ANNULUS_RETURN_IF_ERROR(FindOwnHost(options.interface_name, &host));
  ReservedPort port;
  ANNULUS_RETURN_IF_ERROR(NamingWhoIsOut(0, "the port where the ranks meet", port.Reserve(host)));
  CloseInForkedChildren(port.listener());  // Else ranks would wait at it when this process has gone.
  own.rendezvous = FormatAddress(host, port.port());
  own.listener = port.listener();
  MeetingPoint point;
  point.address = own.rendezvous;
  point.key_source = !own.job_key.empty() ? KeySource::kGiven : own.insecure ? KeySource::kNone : KeySource::kDrawn;
  if (introduction.store && point.key_source == KeySource::kDrawn) {
    ANNULUS_RETURN_IF_ERROR(DrawKey(&point.key));
    own.job_key = point.key;
    if (own.encrypt == Encryption::kRequired) {
      Log(LogLevel::kWarn, 0,
          "the key goes through the program's store, so ANNULUS_ENCRYPT protects from nobody who can read that, or "
          "change "
          "what it sends; set ANNULUS_JOB_KEY on all ranks");
    }
  }
  ANNULUS_RETURN_IF_ERROR(Validate(own));
  if (introduction.store) {
    ANNULUS_RETURN_IF_ERROR(LeaveMeetingPoint(*introduction.store, MeetingPointKey(JobRunOf(options)), point));
  }
  if (introduction.listening) {
    const int outcome = introduction.listening(own.rendezvous);
    if (outcome != 0) {
      return {Code::kSystem,
              "rank 0 listens at " + own.rendezvous + ", but the program's function `listening` returned " +
                  std::to_string(outcome),
              0, 0};
    }
  }
  return Communicator::Create(own, AllRanksOf(own), resources, {}, communicator);
}

// A rank other than 0.
class Guest {
 public:
  Guest(const JobStore& store, const Options& options, const Resources& resources)
      : store_(store),
        options_(options),
        resources_(resources),
        key_(MeetingPointKey(JobRunOf(options))),
        deadline_(DeadlineAfter(options.connect_timeout_ms * kMillisecond)) {}

  Status Create(std::unique_ptr<Communicator>* communicator) {
    for (;;) {
      ANNULUS_RETURN_IF_ERROR(FindMeetingPoint(store_, key_, rank(), deadline_, &point_));
      Options own = options_;
      ANNULUS_RETURN_IF_ERROR(AdoptKey(&own));
      own.rendezvous = point_.address;
      ANNULUS_RETURN_IF_ERROR(Validate(own));
      moved_ = has_met_ = false;
      look_again_ = Now() + kLookAgain;
      const Setup::Patience patience{[this] { return LookAgain(); }, deadline_, [this] { has_met_ = true; }};
      const Status status = Communicator::Create(own, AllRanksOf(own), resources_, patience, communicator);
      // Once the ranks have met, all fail together, and another address in the store is that of rank 0's next try.
      if (status.ok() || has_met_) return status;
      // Nobody may have answered because another job has the old port now.
      if (!moved_ && Now() < deadline_) look_again_ = 0;
      if (!moved_) static_cast<void>(LookAgain());
      if (!moved_ || Now() >= deadline_) return Explain(status);
    }
  }

 private:
  int rank() const { return static_cast<int>(options_.rank); }

  Status AdoptKey(Options* own) const {
    const bool has_own = !options_.job_key.empty();
    const char* problem = nullptr;
    if (point_.key_source == KeySource::kGiven && !has_own)
      problem = "rank 0 was given a job key, and this rank was not";
    if (point_.key_source == KeySource::kDrawn && has_own)
      problem = "this rank was given a job key, and rank 0 was not";
    if (point_.key_source == KeySource::kNone && (has_own || !options_.insecure)) {
      problem = "rank 0 runs without a job key (insecure, ANNULUS_INSECURE), and this rank does not";
    }
    if (problem != nullptr) return {Code::kAuth, std::string(problem) + "; give all ranks the same", rank(), 0};
    if (point_.key_source == KeySource::kDrawn) own->job_key = point_.key;
    return Status();
  }

  // Fails, from then on each time, when the store has another meeting point than the one in use. A store that fails now
  // does not matter: it is asked again, or the ranks meet. Once they have, it is not asked any more: rank 0 may have
  // its communicator already, and leave there where it makes the next.
  Status LookAgain() {
    if (!has_met_ && !moved_ && Now() >= look_again_) {
      MeetingPoint latest;
      const Status found =
          FindMeetingPoint(store_, key_, rank(), std::min(deadline_, DeadlineAfter(kLookUpLimit)), &latest);
      look_again_ = Now() + kLookAgain;
      moved_ = found.ok() && latest != point_;
    }
    return moved_ ? Status(Code::kTimeout, "rank 0 has moved", 0, 0) : Status();
  }

  // Says where the address came from.
  Status Explain(const Status& status) const {
    if (status.message().empty()) return status;
    return {status.code(), status.message() + "; the store has " + point_.address + " under key \"" + key_ + "\"",
            status.peer(), status.os_errno()};
  }

  const JobStore& store_;
  const Options& options_;
  const Resources& resources_;
  const std::string key_;  // In the store.
  const Deadline deadline_;
  MeetingPoint point_;          // The one in use.
  Nanoseconds look_again_ = 0;  // Time of the next look into the store.
  bool moved_ = false;          // Whether the store has another one.
  bool has_met_ = false;        // Whether all ranks have come to the one in use.
};

}  // namespace

Status Introduce(const Introduction& introduction, const Options& options, const Resources& resources,
                 std::unique_ptr<Communicator>* communicator) {
  const bool hosts = options.rank == 0 && (introduction.store || introduction.listening);
  // A single rank has nobody to meet, but a program may wait for its address all the same.
  const bool is_met = options.size > 1 || introduction.listening;
  if (!is_met || (!hosts && !introduction.store)) return Communicator::Create(options, resources, communicator);
  ANNULUS_RETURN_IF_ERROR(CheckGiven(options));
  if (hosts) return CreateAsHost(introduction, options, resources, communicator);
  return Guest(*introduction.store, options, resources).Create(communicator);
}

}  // namespace annulus
