// TcpEndpoint: a link over one or more sockets that fulfils the contract: limits, sticky error, end of the link. Its
// session moves the data.
//
// A connection that breaks is made again, if the link is to be repaired (TcpRepair): until then nothing moves on its
// lane, and after too long it ends the link.
//
// How a link ends. The peer's end of stream on any lane means that sending is pointless, so all lanes are half-closed.
// That makes a living peer close too. Data that has arrived is still delivered, also over a connection that is just
// being made again, if the peer may have used it. The link fails when nothing that is posted can complete any more.
// Close() also half-closes, and leaves the sockets open until the peer's kernel has everything that was sent: closing a
// socket with unread data resets the connection, and the reset overtakes the data that was sent.
//
// If the link is to be repaired, that holds as long as data is owed, at most for the time that a connection may be
// away: a connection that breaks meanwhile is made again, and what was lost is sent again before the end. The other end
// waits for that: it has heard the end on another lane, perhaps.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/address.h"
#include "transport/tcp/session/tcp_session.h"
#include "transport/tcp/tcp_repair.h"
#include "transport/transport.h"

namespace annulus {

struct TcpEndpointConfig {
  int peer = 0;
  std::optional<TcpRepairConfig> repair;  // Nothing: a broken connection ends the link.
  TcpSessionConfig session;
  std::string description;  // Interface and addresses, for messages.
};

class TcpEndpoint final : public Endpoint, public ShortPath {
 public:
  // `sockets` are connected, authenticated and non-blocking, one per lane.
  TcpEndpoint(const TcpEndpointConfig& config, std::vector<SealedSocket> sockets);

  // False when the slots could not be allocated.
  bool valid() const { return session_.valid(); }

  const Limits& limits() const override { return limits_; }
  int peer() const override { return config_.peer; }
  std::string Describe() const override { return "tcp " + config_.description; }
  EndpointStats stats() const override;
  Shortcuts shortcuts() override { return {.short_path = session_.has_short_path() ? this : nullptr}; }
  Status AcquireSlot(size_t bytes, std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override;
  Status Progress(bool* moved) override;
  bool Arm() override;
  bool Close() override;

  Status SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes) override;
  bool Peek(Slice* slice) override { return status_.ok() && session_.Peek(slice); }
  void Pop() override { session_.Pop(); }
  bool Flush() override { return session_.FlushCopy(); }

 private:
  enum class State : uint8_t {
    kOpen,
    kEnding,     // Some lane has ended or broken; all are half-closed.
    kLingering,  // Closed; completed sends may still be in flight.
    kClosed,     // The sockets are closed too.
  };

  Status MoveData(bool* moved);
  bool IsOver(bool* moved);
  void BeginEnding(bool* moved);
  void BeginClosing();
  bool IsWaitedFor();
  bool RepairsWhile(State state) const { return repair_ != nullptr && state_ == state && !repair_->gave_up(); }
  bool Repairs() const { return RepairsWhile(State::kOpen); }
  // Whether data may still come over a connection that is being made.
  bool IsConcluding() const { return RepairsWhile(State::kEnding) && (repair_->is_busy() || session_.AnyBroken()); }
  // Whether nothing can be sent on the short path before its connection is made again.
  bool IsSuspended() const { return Repairs() && session_.is_suspended(0); }
  Status LostStatus() const;
  void Fail(Status status);

  const TcpEndpointConfig config_;
  Limits limits_;
  TcpSession session_;
  const std::unique_ptr<TcpRepair> repair_;  // Null when broken connections are not made again.
  State state_ = State::kOpen;
  Deadline linger_end_ = 0;   // Set while kLingering.
  Deadline deliver_end_ = 0;  // The same, for data that is owed; 0 when nothing that is lost is sent again.
  Status status_;             // The link's sticky error; OK while kOpen or kEnding.
};

}  // namespace annulus
