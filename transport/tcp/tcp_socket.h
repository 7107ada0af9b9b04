// TcpSocket: one connected, non-blocking TCP socket. It reads and writes what is possible now, knows whether more may
// be possible, and asks the reactor for a wake-up when it is. It does not know what the bytes mean.
//
// The end of the stream is not an error here: the socket notes it, and its owner decides what follows.
//
// Threads: those of the endpoint; Retransmits from any thread. Nothing blocks or allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/address.h"
#include "transport/handler_memory.h"
#include "transport/tcp/io_list.h"

namespace annulus {

class TcpSocket {
 public:
  explicit TcpSocket(StreamSocket socket);

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

  // Asks the reactor to wake up once the socket can be read.
  void ArmRead();
  // Asks the reactor to wake up once the socket can be written.
  void ArmWrite();

  // Tells the peer that nothing more will come.
  void ShutDownWrites();
  // Discards the input that has arrived.
  void DiscardInput();
  // Number of bytes written that the peer's kernel does not have; 0 when the kernel does not know.
  size_t Unacknowledged() const;
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

  void NoteError(int error);

  StreamSocket socket_;
  const int fd_;
  const std::shared_ptr<Armed> armed_;
  bool write_blocked_ = false;
  bool drained_ = false;
  bool write_ended_ = false;
  bool read_ended_ = false;
  int errno_ = 0;

  mutable std::mutex close_mutex_;  // Held while the socket closes, so that another thread may query an open one.
  bool closed_ = false;
  mutable uint64_t retransmits_ = 0;  // Latest known value.
};

}  // namespace annulus
