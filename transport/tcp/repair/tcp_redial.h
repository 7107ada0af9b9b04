// TcpRedial: the dialling end's attempts to make a broken connection again, one after the other until one succeeds.
//
// Threads: the one that runs the io_context. Held by shared_ptr; handlers that are still queued keep it alive.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/secret.h"
#include "base/status.h"
#include "transport/security/stream_handshake.h"
#include "transport/stream_socket.h"

namespace annulus {

// How long attempt `number` waits for the answer of the peer's kernel.
Nanoseconds AttemptTime(uint32_t number, Nanoseconds round_trip);

class TcpRedial : public std::enable_shared_from_this<TcpRedial> {
 public:
  struct Plan {
    Hello hello;  // Its `connection` is counted up by each attempt.
    Secret key;
    StreamEndpoint target;
    StreamEndpoint source;            // As ConnectPlan::source.
    Nanoseconds round_trip = 0;       // Least one of the path, as far as it is known.
    std::function<void()> on_asking;  // Before each time that the peer's rank is asked to let this end in.
    std::function<void(SealedSocket)> on_connected;
  };

  TcpRedial(asio::io_context* context, Plan plan);

  void Start();
  // `on_connected` will not be called any more.
  void Cancel();

  // Whether the peer's kernel has accepted the latest attempt, and its rank has to answer. That may take as long as it
  // computes.
  bool awaits_answer() const { return handshake_ != nullptr; }
  // Whether the peer has said to the latest attempt that it expects no such connection.
  bool is_turned_away() const { return is_turned_away_; }
  // Number of the latest attempt.
  uint32_t connection() const { return plan_.hello.connection; }

 private:
  Status Open();
  void Prove();
  void OnHandshake(const Status& status);
  void Retry();

  asio::io_context* const context_;
  Plan plan_;
  StreamSocket socket_;
  asio::steady_timer timer_;
  std::shared_ptr<StreamHandshake> handshake_;
  Nanoseconds delay_;
  bool is_turned_away_ = false;
  bool ended_ = false;
};

}  // namespace annulus
