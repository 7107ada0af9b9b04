// RendezvousHost: rank 0's side of the bootstrap. It listens, authenticates visitors, seats each rank, and ends by
// sending every rank the table or, on failure, the same reason.
//
// A visitor is a connection that has not joined yet; strangers remain visitors. A seat is a rank that has joined.
// Threads: the one that calls Run.
#pragma once

#include <asio/steady_timer.hpp>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "collectives/control/control_channel.h"
#include "collectives/membership/bootstrap.h"
#include "collectives/membership/bootstrap_messages.h"
#include "transport/address.h"
#include "transport/reactor.h"
#include "transport/security/strays.h"
#include "transport/security/stream_handshake.h"

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
    std::shared_ptr<StreamHandshake> handshake;
    std::shared_ptr<ControlChannel> channel;  // After the handshake.
    int rank = Status::kNoRank;               // Authenticated rank.
    bool seated = false;
    std::string blob;
  };

  Status OpenListener();
  Status TryListen(const std::vector<StreamEndpoint>& endpoints);
  void Accept();
  void Greet(StreamSocket socket);
  void TakeProven(Visitor* visitor, const Status& status);
  void TakeMessage(Visitor* visitor, MessageType type, std::span<const std::byte> body);
  void Seat(Visitor* visitor, const JoinMessage& join);
  void TakeClosed(Visitor* visitor, const Status& cause);
  void Drop(Visitor* visitor, Strays::Reason reason, const std::string& detail);
  void DropSlow();
  std::unique_ptr<Visitor> Remove(Visitor* visitor);
  Deadline DecideBy() const;
  // Whether config_.give_up failed; failure_ is then its status.
  bool GivesUp();
  void CloseDoor();
  Status Missing() const;
  void Refuse(const Status& status);
  Status SendTables(BootstrapResult* result);

  const BootstrapConfig& config_;
  Reactor* const reactor_;
  const Nanoseconds start_;
  Strays strays_;
  std::string last_stray_;
  StreamListener listener_;
  asio::steady_timer pause_;
  std::list<std::unique_ptr<Visitor>> visitors_;  // Oldest first.
  std::vector<std::unique_ptr<Visitor>> seats_;   // By rank; null: not joined. Rank 0 needs none.
  int seated_ = 0;
  Deadline patience_ends_;  // Earliest deadline of the ranks that have joined.
  Status failure_;          // Failure found before everyone has joined.
  bool refusing_ = false;
};

}  // namespace annulus
