// Transport: moves bytes between pairs of ranks, in order, and knows nothing of types and operators.
//
// A Transport finds out whether it works here (Probe), tells peers where it listens (LocalAddress) and turns their
// addresses into Endpoints (Connect). An Endpoint is one connected, duplex link with one peer.
//
// The unit of traffic is the slice: a tag that the transport carries untouched, and up to Limits::slot_bytes of data.
// Data that need not be staged never is: a transport may send straight from the user's memory and land straight in it
// (Limits says so); otherwise it lends slots, staging buffers that it owns and that peers may share.
//
// Rules of an Endpoint, tested for every backend (docs/transport_contract.md):
//  1. A post returns OK (accepted), would_block (nothing happened: Progress(), then retry) or the link's error.
//  2. Accepted work completes exactly once, only inside Progress() or Close(), and in order per direction.
//  3. Work requests and the memory that they name are lent to the endpoint until they complete.
//  4. The first error sticks: it completes everything pending, and every later call returns it. Data that had fully
//     arrived before the peer closed is still delivered.
//  5. Close() completes pending work with kAborted, at once. Calling it until it returns true takes a bounded time.
//
// Threads: an Endpoint belongs to one thread at a time, save what says "any thread"; hand-over needs a lock. Nothing
// here blocks except Connect.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/transport_settings.h"

namespace annulus {

class MemoryRegistry;
class Reactor;

// What the sender says of a slice; opaque to transports. The engine packs the collective's identity into it.
struct Tag {
  std::array<uint64_t, 4> words{};
  bool operator==(const Tag&) const = default;
};

// What an endpoint can do. Constant from Connect on.
struct Limits {
  size_t slot_bytes = 0;  // Largest slice.
  int send_slots = 0;     // Slots that AcquireSlot can lend at once; also a bound on slices under way.
  int recv_slots = 0;     // Completed receives whose slots can be held (not Released) at once.
  // PostSend takes any readable host memory, not only slots of this endpoint and what InPlace allows.
  bool sends_user_memory = false;
  // A Recv with a landing gets its data there; otherwise data always points into a slot.
  bool lands_in_user_memory = false;
  // The peer of this endpoint is in the same memory domain, so waiting for it costs nanoseconds.
  bool shares_memory = false;
  // Largest slice of the short path, in bytes; 0: there is none.
  uint32_t short_bytes = 0;
};

// One outgoing slice. The poster fills the first group; it may raise `ready` up to `bytes` after posting, and an
// endpoint may pass on the ready part early (cut-through) or wait for all of it.
struct Send {
  Tag tag;
  const std::byte* data = nullptr;  // A slot of this endpoint from AcquireSlot, or user memory where Limits allow it.
  uint32_t bytes = 0;
  uint32_t ready = 0;

  Code code = Code::kOk;  // kInProgress from PostSend to completion. On completion a slot is the endpoint's again.
  Send* next = nullptr;   // The endpoint's own.
  uint64_t cookie = 0;    // The endpoint's own.
};

// One incoming slice, in the order in which the peer posted. `tag` and `bytes` are valid once `started`; `arrived`
// grows to `bytes`, and data[0, arrived) may be read (and, unless read_only, written: it is not the peer's any more).
struct Recv {
  std::byte* landing = nullptr;  // Where the data should land, or null for a slot.
  uint32_t capacity = 0;         // Largest slice to accept. A larger one completes this with kProtocol, `tag` and
                                 // `bytes` set as the peer sent them, and breaks the link.
  bool started = false;
  Tag tag;
  uint32_t bytes = 0;
  uint32_t arrived = 0;
  std::byte* data = nullptr;  // == landing, or a slot that stays valid until Release.
  // `data` lies in registered memory of the peer's: not to be written. Release makes `code` kPeerLost when the peer has
  // given up meanwhile, and its user may have changed what was read.
  bool read_only = false;

  Code code = Code::kOk;  // kInProgress from PostRecv to completion.
  Recv* next = nullptr;   // The endpoint's own.
  uint64_t cookie = 0;    // The endpoint's own.
};

// What this process holds for an endpoint, at most, in bytes. What both ends share is counted at one of them.
struct LinkMemory {
  size_t staging = 0;      // Slots.
  size_t bookkeeping = 0;  // Rings, cells and buffers of frames.
  size_t mapped = 0;       // Of the peer's registered memory: addresses, not memory of this process.
};

// What an endpoint tells of itself.
struct EndpointStats {
  LinkMemory memory;
  // Packets that the network lost or delayed so that they were sent again; 0 where the transport cannot tell. The last
  // number once the link has ended.
  uint64_t retransmits = 0;
};

// The short way for tiny slices, which need neither requests nor slots of the caller's. Posted slices and short ones
// keep one common order, and either end may use either way.
class ShortPath {
 public:
  struct Slice {
    Tag tag;
    const std::byte* data = nullptr;  // Null when it cannot be taken the short way.
    uint32_t bytes = 0;
  };

  // Sends a copy of `data`, of up to Limits::short_bytes, before it returns. Errors: would_block while sends are posted
  // or there is no room; the link's error.
  virtual Status SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes) = 0;

  // Sets *slice to the next slice, and returns true, if it is there whole and no receive is posted. It stays until
  // Take(), which takes it; a receive that is posted instead gets it.
  virtual bool Peek(Slice* slice) = 0;
  virtual void Take() = 0;

  // Wakes the peer, if it sleeps, for what was sent or taken the short way; Progress does so too. Returns whether what
  // was sent has left; if not, Progress() and flush again.
  virtual bool Flush() = 0;

 protected:
  ~ShortPath() = default;
};

// The way of data that the peer reads where this process wrote it.
class InPlace {
 public:
  // Whether PostSend takes [data, data + bytes) although it is no slot of this endpoint, because the peer can read it
  // there (registered memory, transport/memory/memory.h). Such a send completes only when the peer has released it.
  virtual bool SendsFrom(const std::byte* data, size_t bytes) = 0;

  // Whether what is written into slots now had better go past the caches (StreamBytes): the peer is far from this
  // processor, to which lines that it has read take long to come back. Any thread.
  virtual bool StreamsSlots() const = 0;

 protected:
  ~InPlace() = default;
};

// What some endpoints offer for speed; null where they do not. Constant, and as long-lived as the endpoint.
struct Shortcuts {
  ShortPath* short_path = nullptr;  // With Limits::short_bytes.
  InPlace* in_place = nullptr;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual const Limits& limits() const = 0;
  virtual int peer() const = 0;
  // One line for people: transport, interface, addresses.
  virtual std::string Describe() const = 0;
  // Any thread.
  virtual EndpointStats stats() const = 0;
  virtual Shortcuts shortcuts() { return {}; }

  // Lends a slot of limits().slot_bytes to write an outgoing slice into; give it back by PostSend. Slots are
  // aligned to 64 bytes. Errors: would_block when none is free.
  virtual Status AcquireSlot(std::byte** slot) = 0;

  // Queues one slice for the peer. `send` is lent until send->code leaves kInProgress.
  virtual Status PostSend(Send* send) = 0;

  // Queues a buffer for the peer's next slice. `recv` is lent until recv->code leaves kInProgress.
  // Errors: would_block when limits().recv_slots receives without landing are posted or held.
  virtual Status PostRecv(Recv* recv) = 0;

  // Gives back the slot of a receive that completed with kOk. Required exactly once for each such receive whose
  // data != landing; releases may come in any order.
  virtual void Release(Recv* recv) = 0;

  // Moves what can be moved without blocking. Sets *moved to true when any request changed (never to false).
  // Returns the link's sticky error, OK otherwise.
  virtual Status Progress(bool* moved) = 0;

  // Asks that the reactor wakes once Progress() may have something to do. Returns false when it already has: do not
  // sleep then. Cheap when called again before a wake-up.
  virtual bool Arm() = 0;

  // Ends the link: what is pending completes with kAborted, and every later call fails. Returns whether there is
  // nothing to wait for. False: sends that had completed are still on their way, and reach the peer if Close() is
  // called again, a moment later, until it returns true (CloseEndpoints in transport/closing.h); it soon does, whatever
  // the peer does.
  virtual bool Close() = 0;
};

// What every transport of a communicator is made from. Plain values; the reactor and the memory outlive the transport.
struct TransportConfig {
  int rank = 0;
  int nranks = 1;
  std::string job_key;  // Empty: insecure, peers are believed without proof.
  size_t slot_bytes = 256 * 1024;
  int slots = 8;                           // Per direction of a link.
  std::string local_host;                  // Own numeric address towards the rendezvous, as in "10.0.0.2" or "::1".
  TransportSettings settings;              // Of each transport its own.
  const MemoryRegistry* memory = nullptr;  // What peers may read in place, where a transport can; null: none.
  Reactor* reactor = nullptr;
};

// One link to set up. Both ends list it, with each other as peer and the same channel.
struct LinkRequest {
  int peer = 0;
  int channel = 0;
  bool same_host = false;
  std::string address;  // The peer's LocalAddress() of this transport.
};

// What Connect needs to know that was not known when the transport was made.
struct ConnectContext {
  uint64_t job_id = 0;  // The same on all ranks; sets this communicator's links apart from those of others.
  Deadline deadline = kNoDeadline;
  // If any, asked whenever the reactor wakes: a failure ends Connect at once with that status (another rank is known to
  // have failed meanwhile).
  std::function<Status()> give_up;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual const char* Name() const = 0;

  // OK when usable on this machine; otherwise kUnsupported and the reason.
  virtual Status Probe() const = 0;

  // Starts listening, and returns the blob that peers pass to Connect. At most 256 bytes.
  virtual Status LocalAddress(std::string* address) = 0;

  // Establishes all links at once, authenticated both ways, and stops listening. Both ends must call it; the higher
  // rank dials, the lower accepts. Strangers, slow clients and broken hellos are dropped and logged once, and do not
  // delay the rest. Output: endpoints[i] belongs to links[i]. Blocks up to context.deadline. Errors: kTimeout, kAuth or
  // kPeerLost with the peer's rank; what give_up returned; all made so far is closed.
  virtual Status Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                         std::vector<std::unique_ptr<Endpoint>>* endpoints) = 0;
};

}  // namespace annulus
