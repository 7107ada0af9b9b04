// VerbsEndpoint: a link over reliable connections of RDMA devices, as the contract wants it: limits, error, end. Its
// connection moves slices; the stream over which it was set up tells when the peer is gone.
//
// How a link ends. The peer's farewell says how many of its messages have been acknowledged, and those are delivered
// first. It also says how many messages it has received, so that a send whose acknowledgement was lost with the peer is
// no failure. A request that fails breaks the connection; what had arrived before is delivered too.
//
// A send from registered memory is given back only when no device can read it any more: otherwise its owner's next
// content could still reach a peer that takes it for this slice. So an end that gives up with such sends stops its
// device first, and the same with receives into whose landings its device writes.
//
// A link whose ends both want it does not end when its device fails, or its peer's. It stops (VerbsStopping), and its
// owner goes on over the stream (transport/continuable.h). A peer that has left or died, or breaks the rules, ends it
// all the same.
//
// Threads: as transport/transport.h says of every Endpoint.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/continuable.h"
#include "transport/transport.h"
#include "transport/verbs/rail/verbs_rail.h"
#include "transport/verbs/verbs_connection.h"
#include "transport/verbs/verbs_stopping.h"
#include "transport/verbs/verbs_stream.h"

namespace annulus {

class VerbsEndpoint final : public Endpoint, private InPlace, private Continuable {
 public:
  // A rail for each of `ports`, in the peer's order.
  VerbsEndpoint(const std::vector<VerbsPort>& ports, int peer, const VerbsConnectionConfig& config);

  // Makes this end of the connection. Errors: those of VerbsConnection.
  Status Open(VerbsGreeting* greeting);
  // Connects it to the peer. Errors: those of VerbsConnection; kMismatch.
  Status Connect(const VerbsGreeting& peer);
  // Takes over the stream; the link is up.
  void Attach(StreamSocket socket);

  // Memory of one such link, in bytes. `continues`: its ends may want to go on over the stream.
  static size_t MemoryBytes(int slots, size_t slot_bytes, size_t rails, bool continues);

  const Limits& limits() const override { return limits_; }
  int peer() const override { return peer_; }
  std::string Describe() const override;
  EndpointStats stats() const override;
  Shortcuts shortcuts() override {
    return {.in_place = this, .continuable = stopping_.allowed() ? static_cast<Continuable*>(this) : nullptr};
  }
  Status AcquireSlot(size_t bytes, std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override { connection_.receiver().Release(recv); }
  Status Progress(bool* moved) override;
  bool Arm() override;
  bool Close() override;

 private:
  bool SendsFrom(const std::byte* data, size_t bytes) override { return connection_.sender().SendsFrom(data, bytes); }
  bool MayLand(const std::byte* data, size_t bytes) override { return connection_.MayLand(data, bytes); }
  bool StreamsSlots() const override { return false; }

  bool has_stopped() const override { return stopping_.stopped(); }
  std::string WhyItStopped() const override { return stopping_.why(); }
  LinkStream TakeStream() override { return {stream_->TakeSocket()}; }
  Status NextToCarry(bool only_completed, CarriedSlice* slice) override {
    return connection_.sender().NextToCarry(only_completed, slice);
  }
  bool is_copying() const override { return connection_.sender().is_copying(); }
  void OnCarried() override { connection_.sender().OnCarried(); }
  bool owes_completed() const override { return connection_.sender().owes_completed(); }
  bool has_for_next() const override { return connection_.receiver().has_for_next(); }
  Recv* TakeReceive() override { return connection_.receiver().TakeReceive(); }
  bool has_partial() const override { return connection_.receiver().has_partial(); }
  Recv* partial() override { return connection_.receiver().partial(); }
  void PartialArrived(uint32_t arrived) override { connection_.receiver().PartialArrived(arrived); }
  bool Holds(const Recv& recv) const override { return connection_.receiver().Holds(recv); }
  void FailSends(Code code) override { connection_.sender().FailAll(code); }
  void FailReceives(Code code) override { connection_.receiver().FailAll(code); }

  void ReadStream();
  bool PeerLeft() const { return stream_->ended(); }
  // Whether the device here or the peer's has failed, and the link is to go on over the stream.
  bool MustStop() const;
  void BeginStopping();
  Status ProgressStopping(bool* moved);
  // Whether nothing more can be sent; what arrived is still to be delivered.
  bool IsEnding() const { return PeerLeft() || (!stopping_.allowed() && connection_.CauseIsKnown()); }
  // Whether the link is ending and nothing will arrive any more.
  bool AllArrived() const;
  // Whether the link has ended and everything that arrived is delivered.
  bool IsOver() const { return AllArrived() && !connection_.receiver().has_messages(); }
  // Fails what was posted to a peer that will never receive it. Returns whether there was anything to fail.
  bool FailLostSends();
  std::string PeerName() const { return "rank " + std::to_string(peer_); }
  Status LostStatus() const;
  void FailPending(Code code);
  bool LingersOn();
  void End(Status status);
  void Leave(Code code);

  const int peer_;
  const int rank_;
  const Nanoseconds linger_;  // Time that completed sends have after Close().
  Limits limits_;
  VerbsConnection connection_;
  VerbsStopping stopping_;
  std::optional<VerbsStream> stream_;
  std::vector<std::string> peer_texts_;  // The peer's address on each rail.
  bool closed_ = false;
  Deadline drain_end_ = 0;   // Set once the peer has left.
  Deadline linger_end_ = 0;  // Set by the first Close().
  Status status_;            // The sticky error; OK while the link lives.
};

}  // namespace annulus
