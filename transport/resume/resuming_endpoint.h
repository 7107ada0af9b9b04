// ResumingEndpoint: a link that goes on over a second one when the first one has stopped (transport/continuable.h): the
// same slices in the same order, nothing lost and nothing twice. While nothing fails it passes calls on.
//
// Slices that the peer lacks are sent again whole, by requests of this object's own; those whose requests have
// completed come first, alone. Receives get what has arrived over the first link, and then what comes over the second
// one. Of at most one slice in each direction only a part has arrived, which may have been used already. That one is
// received again into a slot of the second link, and only what is missing is copied to where its first part lies.
//
// Slots and queues stay those of the first link, and so do the limits. There is no way back. When the second link
// fails, or cannot be made, its error is the link's.
//
// Threads: as transport/transport.h says of every Endpoint.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/continuable.h"
#include "transport/transport.h"

namespace annulus {

class ResumingEndpoint final : public Endpoint, private InPlace {
 public:
  // Makes the second link out of the first one's stream. It sends from host memory, lands nothing, and has as many
  // slots to receive into as the first one, which are no smaller.
  using GoOn = std::function<Status(LinkStream stream, std::unique_ptr<Endpoint>* second)>;

  // `first` is continuable.
  ResumingEndpoint(std::unique_ptr<Endpoint> first, int rank, GoOn go_on);

  const Limits& limits() const override { return limits_; }
  int peer() const override { return first_->peer(); }
  std::string Describe() const override;
  EndpointStats stats() const override;
  Shortcuts shortcuts() override { return {.in_place = first_->shortcuts().in_place != nullptr ? this : nullptr}; }
  Status AcquireSlot(size_t bytes, std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override;
  Status Progress(bool* moved) override;
  bool Arm() override;
  bool Close() override;

 private:
  // A request of the second link, and the one that it is for.
  struct Carrier {
    Send send;
    const Send* source = nullptr;  // Null: that one has completed.
  };
  // The slice of which a part has arrived over the first link.
  struct Patch {
    Recv recv;
    bool posted = false;
  };

  bool SendsFrom(const std::byte* data, size_t bytes) override;
  bool MayLand(const std::byte* data, size_t bytes) override;
  bool StreamsSlots() const override { return first_->shortcuts().in_place->StreamsSlots(); }

  Status BeginSecond();
  Status ProgressSecond(bool* moved);
  // Hands slices to the second link, and tells it how much of them is ready. Sets *moved if anything changed. Errors:
  // those of NextToCarry.
  Status Carry(bool* moved);
  bool FinishCarriers();
  Status FillPartial(bool* moved);
  // The second link has failed, or was not made, or the first one has ended after all: that is `status`, OK when it was
  // told before. What still waits for a receive is delivered first.
  Status Lose(const Status& status, bool* moved);
  Carrier& CarrierAt(size_t index) { return carriers_[(first_carrier_ + index) % carriers_.size()]; }

  const std::unique_ptr<Endpoint> first_;
  Continuable* const rest_;  // The first one as Continuable.
  const int rank_;
  const GoOn go_on_;
  const Limits limits_;
  std::unique_ptr<Endpoint> second_;             // Null until the first one has stopped.
  std::atomic<const Endpoint*> seen_ = nullptr;  // The same, for other threads.
  std::vector<Carrier> carriers_;                // A ring.
  size_t first_carrier_ = 0;
  size_t carrying_ = 0;
  Patch patch_;
  std::atomic<uint64_t> bytes_sent_again_ = 0;
  Status lost_;              // The error of the second link, or why there is none.
  Deadline linger_end_ = 0;  // Set by the first Close() after the first link has stopped.
  Status status_;            // The sticky error, once there is a second link.
};

}  // namespace annulus
