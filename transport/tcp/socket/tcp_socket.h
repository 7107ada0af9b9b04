// TcpSocket: one connected, non-blocking TCP socket, with its seal where ranks encrypt. It reads and writes what is
// possible now, knows whether more may be possible, and asks the reactor for a wake-up when it is. It does not know
// what the bytes mean.
//
// The end of the stream is not an error here: the socket notes it, and its owner decides what follows.
//
// Another connection may take the place of one that broke. Linux keeps what it has acknowledged, so that is still read
// from the old connection first. To say how much that is, the owner freezes the socket before: what the old connection
// brings later does not count.
//
// Threads: those of the endpoint; Retransmits from any thread. Nothing blocks. Nothing allocates but a change of the
// connection, and what an encrypted one has left behind.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/handler_memory.h"
#include "transport/security/sealed_socket.h"
#include "transport/stream_socket.h"
#include "transport/tcp/socket/io_list.h"

namespace annulus {

class TcpSocket {
 public:
  explicit TcpSocket(SealedSocket socket);

  // Writes as much of a non-empty list as the kernel takes now. Returns the number of bytes written.
  size_t Write(IoList* from);
  // Reads what has arrived into a non-empty list. Returns the number of bytes read.
  size_t Read(IoList* into);

  // Whether the kernel did not take all of the latest write: the next write is worthwhile only once the reactor says
  // so.
  bool write_blocked() const { return write_blocked_; }
  // Whether the latest read took everything there was.
  bool drained() const { return drained_; }
  // Whether nothing more can be written.
  bool write_ended() const { return write_ended_; }
  // Whether nothing more will be read: the peer closed, or the connection broke.
  bool read_ended() const { return read_ended_; }
  // The first errno of this socket; 0 when the peer just closed.
  int failed_errno() const { return errno_; }
  // Whether the connection broke, so that another one may take its place. Not when the peer has closed it.
  bool broken() const { return errno_ != 0 && errno_ != EPIPE; }
  int fd() const { return fd_; }
  bool frozen() const { return phase_ == Phase::kFrozen || phase_ == Phase::kGivenUp; }

  // The peer is asked for another connection. From now on the end of this one is no end of the stream: the connection
  // is taken for broken.
  void ExpectAnother();
  bool expects_another() const { return phase_ == Phase::kExpectsAnother; }
  // Writes nothing more, and takes nothing more from the network. Returns the number of bytes that will still be read
  // before the next connection's. The peer's kernel knows of no others as acknowledged.
  size_t Freeze();
  // Puts `next` in the place of the frozen connection.
  void Replace(SealedSocket next);
  // Ends a frozen socket, once what has arrived is read.
  void GiveUp();

  // Asks the reactor to wake up once the socket can be read.
  void ArmRead();
  // Asks the reactor to wake up once the socket can be written.
  void ArmWrite();

  // Tells the peer that nothing more will come.
  void ShutDownWrites();
  // Number of bytes written that the peer may not have, at most; 0 when the kernel does not know.
  size_t Unacknowledged() const;
  // Whether the peer's kernel has all that was written, and knows of the end if it was told.
  bool IsDelivered() const { return BytesOnTheWay() == 0; }
  // Takes a connection that the peer has ended for broken, if the kernel has dropped it since.
  void BreakIfDropped();
  // For a broken connection: number of bytes beyond those written that the peer may have all the same. They count as
  // written from now on.
  size_t TakeBegun() { return is_sealed() ? socket_.seal->TakeBegun() : 0; }
  bool is_sealed() const { return socket_.seal != nullptr; }
  void Close();

  // This socket's part of EndpointStats::retransmits. Any thread.
  uint64_t Retransmits() const;

 private:
  // The events that the reactor still waits for. Shared with its handlers, which may outlive the socket.
  struct Armed {
    bool read = false;
    bool write = false;
    HandlerMemory read_handler;
    HandlerMemory write_handler;
  };

  // What is still to be read from a connection that was frozen.
  struct Arrived {
    size_t bytes = 0;
    std::vector<std::byte> opened;  // Where it had a seal: the last `bytes` of these. Else they are in the kernel.
  };
  struct Rest {
    StreamSocket socket;
    Arrived arrived;
  };

  enum class Phase : uint8_t {
    kInUse,
    kExpectsAnother,  // The same, but its end is not that of the stream.
    kFrozen,          // Only what has arrived is read; another connection follows.
    kGivenUp,         // The same, and none follows.
  };

  int BytesOnTheWay() const;
  ssize_t Send(IoList* from);
  ssize_t Receive(IoList* into);
  void OpenArrived();
  size_t ReadRest(IoList* into);
  size_t BytesOfRests() const;
  void NoteError(int error);

  SealedSocket socket_;
  int fd_;
  std::shared_ptr<Armed> armed_;
  std::deque<Rest> rests_;  // What is left of earlier connections, the oldest first.
  Phase phase_ = Phase::kInUse;
  Arrived arrived_;  // What has arrived on the frozen connection.
  bool write_blocked_ = false;
  bool drained_ = false;
  bool write_ended_ = false;
  bool read_ended_ = false;
  bool told_end_ = false;  // The kernel counts the end as one more byte.
  int errno_ = 0;

  mutable std::mutex close_mutex_;  // Held while the socket closes, so that another thread may query an open one.
  bool closed_ = false;
  struct Retransmissions {
    uint64_t earlier = 0;  // Those of earlier connections.
    uint64_t latest = 0;   // Latest known value, of all.
  };
  mutable Retransmissions retransmits_;
};

}  // namespace annulus
