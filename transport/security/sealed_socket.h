// SealedSocket: a connected socket, and the seal of all that goes through it, if it has one. Asio's functions for
// streams (asio::async_read, asio::async_write) work on it.
//
// Threads: those of the socket.
#pragma once

#include <asio/buffer.hpp>
#include <asio/error.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "transport/security/seal.h"
#include "transport/security/sealed_fd.h"
#include "transport/stream_socket.h"

namespace annulus {

class SealedSocket {
 public:
  using executor_type = StreamSocket::executor_type;

  explicit SealedSocket(asio::io_context& context) : socket(context) {}
  SealedSocket(StreamSocket taken, std::unique_ptr<Seal> its_seal = nullptr)  // NOLINT: a socket without a seal.
      : socket(std::move(taken)), seal(std::move(its_seal)) {}

  executor_type get_executor() { return socket.get_executor(); }

  // Releases both; -1 after an error.
  SealedFd Release() {
    asio::error_code error;
    const int fd = socket.release(error);
    return {error ? -1 : fd, std::move(seal)};
  }

  // As asio's functions of these names, for a non-blocking socket. What was not written is to be written next.
  size_t write_some(asio::const_buffer data, asio::error_code& error) {
    if (seal == nullptr) return socket.write_some(data, error);
    const iovec piece = {const_cast<void*>(data.data()), data.size()};
    return CountOrError(seal->Send(socket.native_handle(), &piece, 1), error);
  }
  size_t read_some(asio::mutable_buffer room, asio::error_code& error) {
    if (seal == nullptr) return socket.read_some(asio::buffer(room), error);
    const iovec piece = {room.data(), room.size()};
    const ssize_t got = seal->Receive(socket.native_handle(), &piece, 1);
    const size_t bytes = CountOrError(got, error);
    if (got == 0) error = asio::error::eof;
    return bytes;
  }

  template <class Buffers, class Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (seal == nullptr) {
      socket.async_write_some(buffers, std::forward<Handler>(handler));
    } else if (asio::buffer_size(buffers) == 0) {
      HandOver({}, 0, std::forward<Handler>(handler));
    } else {
      WriteSome(*asio::buffer_sequence_begin(buffers), std::forward<Handler>(handler));
    }
  }

  template <class Buffers, class Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (seal == nullptr) {
      socket.async_read_some(buffers, std::forward<Handler>(handler));
    } else if (asio::buffer_size(buffers) == 0) {
      HandOver({}, 0, std::forward<Handler>(handler));
    } else {
      ReadSome(*asio::buffer_sequence_begin(buffers), std::forward<Handler>(handler));
    }
  }

  StreamSocket socket;
  std::unique_ptr<Seal> seal;

 private:
  // Without an error, the socket was released meanwhile.
  static asio::error_code Ended(const asio::error_code& error) {
    return error ? error : asio::error_code(asio::error::operation_aborted);
  }
  static size_t CountOrError(ssize_t bytes, asio::error_code& error) {
    error = bytes < 0 ? asio::error_code(errno, asio::error::get_system_category()) : asio::error_code();
    return bytes < 0 ? 0 : static_cast<size_t>(bytes);
  }

  // What is ready at once is handed over later too, so that a handler never runs within the call.
  template <class Handler>
  void HandOver(const asio::error_code& error, size_t bytes, Handler&& handler) {
    asio::post(get_executor(),
               [error, bytes, handler = std::decay_t<Handler>(std::forward<Handler>(handler))]() mutable {
                 handler(error, bytes);
               });
  }

  template <class Handler>
  void WriteSome(asio::const_buffer data, Handler handler) {
    asio::error_code error;
    const size_t bytes = write_some(data, error);
    if (error != asio::error::would_block) return HandOver(error, bytes, std::move(handler));
    socket.async_wait(StreamSocket::wait_write,
                      [this, data, handler = std::move(handler)](const asio::error_code& ended) mutable {
                        ended || seal == nullptr ? handler(Ended(ended), 0) : WriteSome(data, std::move(handler));
                      });
  }

  template <class Handler>
  void ReadSome(asio::mutable_buffer room, Handler handler) {
    asio::error_code error;
    const size_t bytes = read_some(room, error);
    if (error != asio::error::would_block) return HandOver(error, bytes, std::move(handler));
    socket.async_wait(StreamSocket::wait_read,
                      [this, room, handler = std::move(handler)](const asio::error_code& ended) mutable {
                        ended || seal == nullptr ? handler(Ended(ended), 0) : ReadSome(room, std::move(handler));
                      });
  }
};

}  // namespace annulus
