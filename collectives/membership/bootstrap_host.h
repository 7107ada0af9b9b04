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

#include "collectives/control/control_connections.h"
#include "collectives/control/sockets/control_door.h"
#include "collectives/control/sockets/control_stream.h"
#include "collectives/membership/bootstrap.h"
#include "collectives/membership/bootstrap_messages.h"
#include "transport/reactor.h"
#include "transport/security/door.h"
#include "transport/stream_socket.h"

namespace annulus {

class RendezvousHost {
 public:
  // Time that the bootstrap stays open once it is known to fail, so that ranks just starting learn the reason.
  static constexpr Nanoseconds kLatecomerGrace = kSecond;

  // All outlive the host.
  RendezvousHost(const BootstrapConfig& config, Reactor* reactor);
  ~RendezvousHost();

  Status Run(BootstrapResult* result);

 private:
  struct Visitor {
    std::string from;
    Deadline limit = kNoDeadline;  // Deadline for joining.
    std::shared_ptr<ControlStream> stream;
    int rank = Status::kNoRank;            // Authenticated rank.
    Library library;                       // As it says; the file comes with its join.
    ControlConnection ends;                // Without its descriptor.
    Deadline patience_ends = kNoDeadline;  // The rank's own deadline, once it has joined.
    bool seated = false;
    bool taken = false;       // It has the table.
    bool returned = false;    // It has the table, and came to the control door.
    bool ended = false;       // It closed its connection after the table, as a process that ends.
    Nanoseconds lost_at = 0;  // When its connection broke, if that was after the table.

    bool has_table() const { return taken || returned; }
    uint64_t process = 0;  // As in its join.
    std::string blob;
  };

  Status OpenListener();
  bool UseReserved(const std::vector<StreamEndpoint>& endpoints);
  Status TryListen(const std::vector<StreamEndpoint>& endpoints);
  std::shared_ptr<Door> MakeDoor();
  void HandleProven(const Door::Proven& proven);
  void HandleUnlike(const Status& status);
  void HandleExhausted(const Status& status);
  void OnMessage(Visitor* visitor, MessageType type, std::span<const std::byte> body);
  void Seat(Visitor* visitor, const JoinMessage& join);
  std::string Contradiction(const Visitor& visitor, const JoinMessage& join) const;
  void HandleClosed(Visitor* visitor, const Status& cause);
  void Drop(Visitor* visitor, Strays::Reason reason, const std::string& detail);
  void DropSlow();
  std::unique_ptr<Visitor> Remove(Visitor* visitor);
  // When the answer is due: before the first deadline of rank 0 and of those that have a seat.
  Deadline DecideBy() const;
  // Whether config_.give_up failed; failure_ is then its status.
  bool GivesUp();
  void CloseDoor();
  Status Missing() const;
  std::vector<int> MissingRanks() const;
  void Refuse(const Status& status);
  void RefuseLatecomers();
  // Fails if a rank does not take its table.
  Status GiveTables(BootstrapResult* result);
  std::string DoorHost() const;
  // Lets ranks that have the table come back; Control goes on with a copy of the listener.
  void OpenControlDoor(uint64_t job_id, ControlConnections* connections);
  void OnReturned(int rank, SealedFd returned, ControlConnections* connections);
  // Until each rank has the table, or is known to be gone; or config_.give_up failed, as in GivesUp.
  void AwaitTaken();
  // Tells all that everyone has the table, and passes their connections on.
  Status Begin(BootstrapResult* result);

  const BootstrapConfig& config_;
  Reactor* const reactor_;
  const Nanoseconds start_;
  StreamListener listener_;
  bool listens_everywhere_ = false;  // The rendezvous is not an address of this host.
  const std::shared_ptr<Door> door_;
  std::list<std::unique_ptr<Visitor>> visitors_;
  std::vector<std::unique_ptr<Visitor>> seats_;  // By rank; null: not joined. Rank 0 needs none.
  int seated_ = 0;
  Deadline patience_ends_;                     // Rank 0's own deadline, or sooner once this is known to fail.
  Status failure_;                             // Failure found before everyone has joined.
  bool exhausted_ = false;                     // failure_ is that there are no descriptors.
  EncodedMessage table_;                       // Set once ranks are given it.
  EncodedMessage refusal_;                     // Set once ranks are told the failure.
  std::unique_ptr<ControlDoor> control_door_;  // From the table on; null where it cannot be opened.
};

}  // namespace annulus
