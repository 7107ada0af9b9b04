// TcpSocket: one connected, non-blocking TCP socket. Reads and writes what it can now, knows whether there may be more,
// and asks the reactor for a wake-up when there is. It knows nothing of what the bytes mean.
//
// The end of the stream is no error here: the socket notes it, and its owner decides what follows.
//
// Threads: those of the endpoint; Retransmits from any. Nothing blocks or allocates, save Arm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/address.h"
#include "transport/tcp/io_list.h"

namespace annulus {

class TcpSocket {
 public:
  explicit TcpSocket(StreamSocket socket);

  // Writes what the kernel takes now of a list that is not empty. Returns how many bytes that was.
  size_t Write(IoList* from);
  // Reads what is there now into a list that is not empty. Returns how many bytes that was.
  size_t Read(IoList* into);

  // The kernel did not take all of the latest write: the next is worth its while once the reactor says so.
  bool write_blocked() const { return write_blocked_; }
  // The latest read took all there was.
  bool drained() const { return drained_; }
  // Nothing more can be written.
  bool write_ended() const { return write_ended_; }
  // Nothing more will be read: the peer closed, or the connection broke.
  bool read_ended() const { return read_ended_; }
  // The first errno of this socket; 0 when the peer just closed.
  int failed_errno() const { return errno_; }

  // Asks that the reactor wakes once the socket can be read, or written.
  void ArmRead();
  void ArmWrite();

  // Tells the peer that nothing more comes.
  void ShutDownWrites();
  // Throws away what has come.
  void DiscardInput();
  // Whether the peer's kernel has all that was written.
  bool Acknowledged() const;
  void Close();

  // As EndpointStats says, of this socket. Any thread.
  uint64_t Retransmits() const;

 private:
  // What the reactor still waits for. Shared with its handlers, which may outlive the socket.
  struct Armed {
    bool read = false;
    bool write = false;
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

  mutable std::mutex close_mutex_;  // The socket closes under it, so that another thread may ask an open one.
  bool closed_ = false;
  mutable uint64_t retransmits_ = 0;  // As last asked.
};

}  // namespace annulus
