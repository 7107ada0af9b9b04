// Continuable: what a link offers that another one can go on for when it fails, as long as both processes live. It
// stops for good: its device touches no memory any more, and each end knows how much of what it has sent has reached
// the other's process. The stream over which the link was made is left for the other link, empty in both directions.
//
// From then on it lends and queues as before, but moves no slice that it has not received already. Its owner carries
// the others: ResumingEndpoint (transport/resume).
//
// Threads: as the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "transport/stream_socket.h"
#include "transport/transport.h"

namespace annulus {

// A stream with the peer: connected, authenticated, non-blocking.
struct LinkStream {
  StreamSocket socket;
};

// A slice to send over the other link.
struct CarriedSlice {
  Tag tag;
  const std::byte* data = nullptr;
  uint32_t bytes = 0;
  // The request that waits for it and tells how much is ready; null: it has completed, and all of it is.
  const Send* send = nullptr;
  bool again = false;  // Some of it was sent before.
};

class Continuable {
 public:
  virtual bool has_stopped() const = 0;
  // Why it stopped, for people.
  virtual std::string WhyItStopped() const = 0;

  // Hands over the stream; once, after it has stopped.
  virtual LinkStream TakeStream() = 0;

  // Sets *slice to the next one that the peer lacks, in order. It is lent until Carried has been called for it, or,
  // with its request, until that has failed.
  // Errors: kWouldBlock  there is none by now.
  //         others       permanent: it cannot be had, so the link is lost.
  virtual Status NextToCarry(bool only_completed, CarriedSlice* slice) = 0;
  // Whether a device is copying the next one, to where it can be lent: only asking for it tells when it is there.
  virtual bool is_copying() const = 0;
  // The first slice that is being carried has been sent: its request completes.
  virtual void OnCarried() = 0;
  // Whether slices are to be carried, or are being carried, whose requests have completed; they come before others.
  virtual bool owes_completed() const = 0;

  // Whether a receive that is posted now gets a slice that has arrived here, in whole or in part.
  virtual bool has_for_next() const = 0;
  // Takes back the next posted receive that gets nothing from here; null when there is none.
  virtual Recv* TakeReceive() = 0;
  // Whether the last slice that arrives from here has arrived in part only. It comes over the other link again, whole.
  virtual bool has_partial() const = 0;
  // The receive of that slice; null until it is posted.
  virtual Recv* partial() = 0;
  // More of it has been written to where the receive's data lies; completes the receive when that is all.
  virtual void PartialArrived(uint32_t arrived) = 0;
  // Whether the slot of a completed receive is one of this link.
  virtual bool Holds(const Recv& recv) const = 0;

  // Completes what is pending with `code`. What has completed can still be carried.
  virtual void FailSends(Code code) = 0;
  virtual void FailReceives(Code code) = 0;

 protected:
  ~Continuable() = default;
};

}  // namespace annulus
