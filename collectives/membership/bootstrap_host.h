// RendezvousHost: rank 0's side of the bootstrap. It listens, authenticates visitors, seats each rank, and ends by
// sending every rank the table or, on failure, the same reason.
//
// The door (transport/security/door.h) keeps strangers out. A visitor has proven itself and not joined yet. A seat is a
// rank that has joined.
// Threads: the one that calls Run.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "collectives/control/control_stream.h"
#include "collectives/membership/bootstrap.h"
#include "collectives/membership/bootstrap_messages.h"
#include "transport/address.h"
#include "transport/reactor.h"
#include "transport/security/door.h"

namespace annulus {

class RendezvousHost {
 public:
  // All outlive the host.
  RendezvousHost(const BootstrapConfig& config, Reactor* reactor);
  ~RendezvousHost();

  Status Run(BootstrapResult* result);

 private:
  struct Visitor {
    std::string from;
    Deadline limit = kNoDeadline;  // Deadline for joining.
    std::shared_ptr<ControlStream> stream;
    int rank = Status::kNoRank;  // Authenticated rank.
    Library library;             // As it says; the file comes with its join.
    bool seated = false;
    std::string blob;
  };

  Status OpenListener();
  bool TakeReserved(const std::vector<StreamEndpoint>& endpoints);
  Status TryListen(const std::vector<StreamEndpoint>& endpoints);
  std::shared_ptr<Door> MakeDoor();
  void TakeProven(const Door::Proven& proven);
  void TakeExhausted(const Status& status);
  void TakeMessage(Visitor* visitor, MessageType type, std::span<const std::byte> body);
  void Seat(Visitor* visitor, const JoinMessage& join);
  std::string Contradiction(const Visitor& visitor, const JoinMessage& join) const;
  void TakeClosed(Visitor* visitor, const Status& cause);
  void Drop(Visitor* visitor, Strays::Reason reason, const std::string& detail);
  void DropSlow();
  std::unique_ptr<Visitor> Remove(Visitor* visitor);
  Deadline DecideBy() const;
  // Whether config_.give_up failed; failure_ is then its status.
  bool GivesUp();
  void CloseDoor();
  Status Missing() const;
  std::vector<int> MissingRanks() const;
  void Refuse(const Status& status);
  void RefuseLatecomers();
  Status SendTables(BootstrapResult* result);
  // Waits until all ranks have taken what was sent to them, and returns those that have not in time.
  std::vector<int> AwaitDrained();
  void TellVerdict(const Status& status, const std::vector<int>& except);

  const BootstrapConfig& config_;
  Reactor* const reactor_;
  const Nanoseconds start_;
  StreamListener listener_;
  bool listens_everywhere_ = false;  // The rendezvous is not an address of this host.
  const std::shared_ptr<Door> door_;
  std::list<std::unique_ptr<Visitor>> visitors_;
  std::vector<std::unique_ptr<Visitor>> seats_;  // By rank; null: not joined. Rank 0 needs none.
  int seated_ = 0;
  Deadline patience_ends_;  // Earliest deadline of the ranks that have joined.
  Status failure_;          // Failure found before everyone has joined.
  bool exhausted_ = false;  // failure_ is that there are no descriptors.
  EncodedMessage refusal_;  // Set once ranks are told the failure.
};

}  // namespace annulus
