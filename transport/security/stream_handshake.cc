#include "transport/security/stream_handshake.h"

#include <string.h>  // explicit_bzero

#include <asio/buffer.hpp>
#include <asio/ip/tcp.hpp>
#include <utility>

namespace annulus {

StreamHandshake::StreamHandshake(StreamSocket socket, Handshake::Role role, const std::string& key, const Hello& hello)
    : role_(role), socket_(std::move(socket)), handshake_(role, key, hello) {}

void StreamHandshake::Start(Decide decide, Done done) {
  decide_ = std::move(decide);
  done_ = std::move(done);
  asio::error_code error;
  socket_.socket.non_blocking(true, error);
  if (error) return FinishLost(error);
  // Both ends say little several times in turn; held back, each word would wait 40 ms for the other end's kernel.
  asio::error_code ignored;  // A UNIX socket holds nothing back.
  socket_.socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  if (handshake_.state() == Handshake::State::kFailed) return Finish(handshake_.Feed({}));
  Continue();
}

void StreamHandshake::Cancel() {
  done_ = nullptr;
  asio::error_code ignored;
  socket_.socket.close(ignored);
}

void StreamHandshake::Continue() {
  if (!done_) return;
  if (!handshake_.Output().empty()) return Write();
  if (handshake_.state() != Handshake::State::kDone) return Read();
  if (handshake_.encrypts() && socket_.seal == nullptr) return BeginSeal();
  if (role_ == Handshake::Role::kAcceptor) return SendVerdict();
  ReadVerdict();
}

void StreamHandshake::Write() {
  const std::span<const std::byte> output = handshake_.Output();
  socket_.async_write_some(asio::buffer(output.data(), output.size()),
                           [self = shared_from_this()](const asio::error_code& error, size_t bytes) {
                             if (error) return self->FinishLost(error);
                             self->handshake_.Sent(bytes);
                             self->answered_ = true;
                             self->Continue();
                           });
}

void StreamHandshake::Read() {
  socket_.async_read_some(asio::buffer(in_.data(), handshake_.Wants()),
                          [self = shared_from_this()](const asio::error_code& error, size_t bytes) {
                            if (error) return self->FinishLost(error);
                            self->OnInput(bytes);
                          });
}

void StreamHandshake::OnInput(size_t bytes) {
  if (!done_) return;
  spoken_to_ = true;
  Status status = handshake_.Feed(std::span(in_).first(bytes));
  if (!status.ok()) {
    const std::span<const std::byte> hint = handshake_.Output();
    asio::error_code ignored;
    if (!hint.empty()) socket_.write_some(asio::buffer(hint.data(), hint.size()), ignored);
    // Closing with unread bytes would reset the connection, and the peer might not read the hello.
    socket_.socket.read_some(asio::buffer(in_), ignored);
    return Finish(std::move(status));
  }
  Continue();
}

void StreamHandshake::BeginSeal() {
  Seal::Key key = handshake_.SealKey();
  Status made = Seal::Create(role_, key, &socket_.seal);
  explicit_bzero(key.data(), key.size());
  made.ok() ? Shake() : Finish(std::move(made));
}

void StreamHandshake::Shake() {
  Status status = socket_.seal->Shake(socket_.socket.native_handle());
  if (status.ok()) return Continue();
  if (status.code() != Code::kInProgress) return Finish(std::move(status));
  socket_.socket.async_wait(socket_.seal->holds_output() ? StreamSocket::wait_write : StreamSocket::wait_read,
                            [self = shared_from_this()](const asio::error_code& error) {
                              if (error) return self->FinishLost(error);
                              if (self->done_) self->Shake();
                            });
}

void StreamHandshake::SendVerdict() {
  const Verdict verdict = decide_(handshake_.peer());
  const uint8_t byte = static_cast<uint8_t>(verdict);
  asio::error_code error;
  // It fits: the proof acknowledges everything that was sent before.
  socket_.write_some(asio::buffer(&byte, 1), error);
  if (error) return FinishLost(error);
  if (verdict == Verdict::kWelcome) return Finish(Status());
  Finish({Code::kProtocol, verdict == Verdict::kDuplicate ? "already connected" : "not expected here"});
}

void StreamHandshake::ReadVerdict() {
  socket_.async_read_some(asio::buffer(in_.data(), 1),
                          [self = shared_from_this()](const asio::error_code& error, size_t bytes) {
                            if (error) return self->FinishLost(error);
                            self->OnVerdict();
                          });
}

void StreamHandshake::OnVerdict() {
  const Hello& peer = handshake_.peer();
  const std::string name = "rank " + std::to_string(peer.rank);
  switch (static_cast<Verdict>(in_[0])) {
    case Verdict::kWelcome:
      return Finish(Status());
    case Verdict::kDuplicate:
      return Finish({Code::kProtocol, name + " is already connected to a rank " + std::to_string(peer.target_rank) +
                                          "; do two processes run with the same rank?"});
    case Verdict::kUnexpected:
      return Finish({Code::kProtocol, name + " does not expect this connection"});
  }
  Finish({Code::kProtocol, name + " ended the handshake with an unknown verdict"});
}

void StreamHandshake::Finish(Status status) {
  if (!done_) return;
  Done done = std::exchange(done_, nullptr);
  if (!status.ok()) {
    asio::error_code ignored;
    socket_.socket.close(ignored);
  }
  done(std::move(status));
}

void StreamHandshake::FinishLost(const asio::error_code& error) {
  std::string message = "the connection ended during the handshake (" + error.message() + ")";
  if (owes_proof()) message += ", after this rank's proof; another job key there?";
  Finish({Code::kPeerLost, std::move(message), Status::kNoRank, error.value()});
}

}  // namespace annulus
