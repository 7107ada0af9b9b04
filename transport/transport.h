// Transport: moves bytes between pairs of ranks, in order, and knows nothing of types and operators.
//
// A Transport finds out whether it works here (Probe), reports where it listens (LocalAddress), and turns the addresses
// of peers into Endpoints (Connect). An Endpoint is one connected, duplex link with one peer.
//
// The unit of traffic is the slice: a tag that the transport carries untouched, and up to Limits::slot_bytes of data.
// Data is staged only where it must be: a transport may send straight from the user's memory and land data straight in
// it (Limits says so). Otherwise it lends slots: staging buffers that it owns and that peers may share.
//
// Rules of an Endpoint, tested for every backend (docs/transport_contract.md):
//  1. A post returns OK (accepted), would_block (nothing happened: Progress(), then retry) or the link's error.
//  2. Accepted work completes exactly once, only inside Progress() or Close(), and in order per direction.
//  3. Work requests and the memory that they name are lent to the endpoint until they complete.
//  4. The first error sticks: it completes everything pending, and every later call returns it. Data that had fully
//     arrived before the peer closed is still delivered.
//  5. Close() completes pending work with kAborted, at once. Calling it until it returns true takes a bounded time.
//
// Threads: an Endpoint belongs to one thread at a time, except for functions marked "any thread"; handing it over needs
// a lock. Nothing here blocks except Connect.
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
#include "base/identity.h"
#include "base/secret.h"
#include "base/status.h"
#include "transport/memory/memory_kind.h"
#include "transport/transport_settings.h"

namespace annulus {

class Continuable;
class MemoryRegistry;
class Reactor;
class SlotMemory;

// The sender's description of a slice; opaque to transports. The engine packs the collective's identity into it.
struct Tag {
  std::array<uint64_t, 4> words{};
  bool operator==(const Tag&) const = default;
};

// What an endpoint can do. Constant after Connect.
struct Limits {
  size_t slot_bytes = 0;  // Largest slice.
  int send_slots = 0;     // Slots that AcquireSlot can lend at once; also a bound on slices in flight.
  int recv_slots = 0;     // Completed receives whose slots can be held (not Released) at once.
  // Kinds of memory from which PostSend accepts any readable range, not only slots of this endpoint.
  MemoryKinds sends_from;
  // Kinds of memory that a landing of PostRecv may have. If there are none, data always points into a slot.
  MemoryKinds lands_in;
  // Kinds of memory of which InPlace::SendsFrom may accept ranges.
  MemoryKinds in_place;
  // Kinds of memory of which InPlace::MayLand may accept ranges.
  MemoryKinds may_land_in;
  // Both ends share memory, so waiting for the peer costs nanoseconds.
  bool shares_memory = false;
  // Largest slice of the short path, which sends from host memory, in bytes; 0: there is no short path.
  uint32_t short_bytes = 0;
  // A connection that breaks may be replaced, and what was lost with it, also of completed sends, is sent again. That
  // happens in Progress, so whoever drives also calls it for such a link that nothing under way uses.
  bool may_be_made_again = false;
};

// One outgoing slice. The poster fills the first group. It may raise `ready` up to `bytes` after posting; an endpoint
// may pass on the ready part early (cut-through) or wait for all of it.
struct Send {
  Tag tag;
  // A slot of this endpoint from AcquireSlot, or user memory where Limits or InPlace allow it.
  const std::byte* data = nullptr;
  uint32_t bytes = 0;
  uint32_t ready = 0;

  // kInProgress from PostSend to completion. On completion the endpoint owns the slot again.
  Code code = Code::kOk;
  Send* next = nullptr;  // Owned by the endpoint.
  uint64_t cookie = 0;   // Owned by the endpoint.
};

// One incoming slice, in the order in which the peer posted. `tag` and `bytes` are valid once `started`. `arrived`
// grows to `bytes`. data[0, arrived) may be read and, unless read_only, written: the peer does not use it any more.
struct Recv {
  // Where the data should land, if Limits allows it or InPlace::MayLand does; null for a slot.
  std::byte* landing = nullptr;
  // Memory of a device that will read the data, and work on this memory with it: then the data may lie in other memory
  // that the device reads (on_device). Null: the CPU must be able to read it.
  const std::byte* reader = nullptr;
  // Largest slice to accept, in bytes. A larger one completes this with kProtocol, `tag` and `bytes` set as the peer
  // sent them, and breaks the link.
  uint32_t capacity = 0;
  bool started = false;
  Tag tag;
  uint32_t bytes = 0;
  uint32_t arrived = 0;
  // == landing, or a slot that stays valid until Release. Set once `started`; only then is it known where the data of a
  // landing that InPlace::MayLand has accepted is.
  std::byte* data = nullptr;
  // `data` lies in memory of the peer, or was copied from there, and must not be written. Release sets `code` to
  // kPeerLost when the peer has given up meanwhile, because its user may have changed what was read.
  bool read_only = false;
  // `data` lies in a device's memory, which the device of `reader` reads and the CPU must not touch. It is read_only.
  bool on_device = false;

  Code code = Code::kOk;  // kInProgress from PostRecv to completion.
  Recv* next = nullptr;   // Owned by the endpoint.
  uint64_t cookie = 0;    // Owned by the endpoint.
};

// The memory that this process holds for an endpoint, at most, in bytes. Memory shared by both ends is counted at one
// of them.
struct LinkMemory {
  size_t staging = 0;      // Slots.
  size_t bookkeeping = 0;  // Rings, cells and frame buffers.
  // Registered memory of the peer that is mapped here: address space, not memory of this process.
  size_t mapped = 0;
};

// What an endpoint reports about itself.
struct EndpointStats {
  LinkMemory memory;
  // Packets that were sent again because the network lost or delayed them; 0 where the transport cannot know. Keeps its
  // last value once the link has ended.
  uint64_t retransmits = 0;
  // Broken connections whose place another one took, and bytes of streams that were sent again over these.
  uint64_t reconnects = 0;
  uint64_t bytes_sent_again = 0;
  // Bytes of slices that this end's device has read in the peer's memory; of these, bytes that it put into landings.
  uint64_t read_bytes = 0;
  uint64_t landed_bytes = 0;
};

// The short path, for tiny slices: it needs neither requests nor slots of the caller. Posted and short slices keep one
// common order, and either end may use either path.
class ShortPath {
 public:
  struct Slice {
    Tag tag;
    const std::byte* data = nullptr;  // Null when it cannot be taken on the short path.
    uint32_t bytes = 0;
  };

  // Sends a copy of `data`, of up to Limits::short_bytes, before it returns. Errors: would_block while sends are posted
  // or there is no room; the link's error.
  virtual Status SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes) = 0;

  // Sets *slice to the next slice and returns true if it has arrived whole and no receive is posted. The slice stays
  // until Pop() removes it or a receive that is posted instead gets it.
  virtual bool Peek(Slice* slice) = 0;
  virtual void Pop() = 0;
  // For a slice whose data Peek could not show: copies all of it to `to` and removes it, if that is possible now.
  // Returns whether it was.
  virtual bool PopInto(std::byte*) { return false; }

  // Wakes the peer, if it sleeps, for what was sent or taken on the short path; Progress does so too. Returns whether
  // what was sent has left. If not, call Progress() and flush again.
  virtual bool Flush() = 0;

 protected:
  ~ShortPath() = default;
};

// Sends data that the peer, or this host's device, reads where this process wrote it; and lands data where this
// process wants it, if that is possible when it comes.
class InPlace {
 public:
  // Whether PostSend accepts [data, data + bytes), which is not a slot of this endpoint, because the peer can read it
  // there (registered memory, transport/memory/memory.h), or its device can. Such a send completes only when nobody
  // reads it any more.
  virtual bool SendsFrom(const std::byte* data, size_t bytes) = 0;

  // Whether the next PostSend may lend exactly [data, data + bytes) of host memory: the peer copies it from there if it
  // comes soon; otherwise this end copies it into a slot. So such a send does not wait for a receive. Meant for slices
  // that the peer would only copy out of a slot. Send::ready must be all of it. Ask again for each slice.
  virtual bool Lends(const std::byte*, size_t) { return false; }
  // Whether Lends may be true of the next slice. Where it is false, a shorter way may be taken without asking.
  virtual bool MayLend() const { return false; }
  // Takes back what is lent and not yet copied, for a user who gets his memory back before the link is closed: the peer
  // takes nothing of it for valid from here on. Those sends do not complete before Close().
  virtual void Withdraw() {}

  // Whether a receive whose landing is `data` and whose capacity is `bytes` may land there. Whether it does depends on
  // what the peer sends. Until it has started the landing may be written to, even if the data goes to a slot in the
  // end.
  virtual bool MayLand(const std::byte* data, size_t bytes) = 0;

  // Whether slots are best written past the caches at present (StreamBytes): the peer is far from this processor, and
  // lines that it has read take long to come back. Any thread.
  virtual bool StreamsSlots() const = 0;

 protected:
  ~InPlace() = default;
};

// What some endpoints offer for speed, or when they fail; null otherwise. Constant, and valid as long as the endpoint.
struct Shortcuts {
  ShortPath* short_path = nullptr;  // With Limits::short_bytes.
  InPlace* in_place = nullptr;
  Continuable* continuable = nullptr;  // For the owner of the transport alone (transport/continuable.h).
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

  // Lends a slot to write an outgoing slice into, of up to `bytes`, or up to limits().slot_bytes if that is less; no
  // larger one may be posted in it. PostSend gives it back. Slots are aligned to 64 bytes. Errors: would_block when
  // none is free.
  virtual Status AcquireSlot(size_t bytes, std::byte** slot) = 0;
  static constexpr size_t kWholeSlot = SIZE_MAX;

  // Queues one slice for the peer. `send` is lent until send->code leaves kInProgress.
  virtual Status PostSend(Send* send) = 0;

  // Queues a buffer for the peer's next slice. `recv` is lent until recv->code leaves kInProgress.
  // Errors: would_block when limits().recv_slots receives without landing are posted or held.
  virtual Status PostRecv(Recv* recv) = 0;

  // Gives back the slot of a receive that completed with kOk. Required exactly once for each such receive whose data !=
  // landing; releases may come in any order.
  virtual void Release(Recv* recv) = 0;

  // Moves what can be moved without blocking. Sets *moved to true when any request changed (never to false). Returns
  // the link's sticky error, OK otherwise.
  virtual Status Progress(bool* moved) = 0;

  // Asks the reactor to wake up once Progress() may have something to do. Returns false when it already has: do not
  // sleep then. Cheap when called again before a wake-up.
  virtual bool Arm() = 0;

  // Ends the link: pending work completes with kAborted, and every later call fails. Returns true when there is nothing
  // to wait for. False: completed sends are still in flight. They reach the peer if Close() is called again, a moment
  // later, until it returns true (CloseEndpoints in transport/closing.h). It soon does, whatever the peer does.
  virtual bool Close() = 0;
};

// Whether a receive with that capacity may name this memory as its landing.
inline bool MayLand(Endpoint* endpoint, MemoryKind kind, const std::byte* landing, size_t capacity) {
  const Limits& limits = endpoint->limits();
  if (limits.lands_in.Has(kind)) return true;
  return limits.may_land_in.Has(kind) && endpoint->shortcuts().in_place->MayLand(landing, capacity);
}

// What every transport of a communicator is made from. Plain values; the reactor and the memory outlive the transport.
struct TransportConfig {
  int rank = 0;
  int nranks = 1;
  Secret job_key;  // Empty: insecure; peers are believed without proof.
  size_t slot_bytes = 256 * 1024;
  int slots = 8;               // Per direction of a link.
  std::string local_host;      // Own numeric address towards the rendezvous, as in "10.0.0.2" or "::1".
  TransportSettings settings;  // Those of each transport.
  // Memory that peers may read in place, where a transport supports it; null: none.
  const MemoryRegistry* memory = nullptr;
  // Where slots come from, or are registered, so that devices can access them (transport/memory/slot_memory.h). It
  // outlives the endpoints. Null: there is no device.
  SlotMemory* slot_memory = nullptr;
  Reactor* reactor = nullptr;
  // Address on PCI of the GPU that the rank uses, "0000:17:00.0", near which network devices are best; "": none.
  std::string gpu;
  // The rank's place in its host's order, by which ranks share out devices that are equally good for them.
  int turn = 0;
  // Whether the owner goes on for links that are Continuable, where settings and peer want it too.
  bool continues = false;
};

// One link to set up. Both ends list it, with each other as the peer and with the same channel.
struct LinkRequest {
  int peer = 0;
  int channel = 0;
  bool same_host = false;
  std::string address;  // The peer's LocalAddress() of this transport.
  // Another transport can link the two; both ends know that alike. A device that refuses this link is then no error.
  bool has_other = false;
};

// What Connect needs and was not known when the transport was made.
struct ConnectContext {
  Identity identity;  // The same on all ranks; separates this communicator's links from those of others.
  Deadline deadline = kNoDeadline;
  // Optional. Called whenever the reactor wakes up. A failure ends Connect at once with that status (another rank is
  // known to have failed meanwhile).
  std::function<Status()> give_up;
  // Called once for each of the links that a device has refused, at either end, with its index and the reason. Needed
  // where a link has_other.
  std::function<void(size_t link, const std::string& why)> refused;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual const char* Name() const = 0;

  // OK when usable on this machine; otherwise kUnsupported and the reason.
  virtual Status Probe() const = 0;

  // Starts listening, and returns the address that peers pass to Connect. At most 256 bytes.
  virtual Status LocalAddress(std::string* address) = 0;

  // For people: the devices of this machine that links will use, and how near they are; "" where the system chooses.
  // Since LocalAddress.
  virtual std::string Devices() const { return ""; }

  // Establishes all links at once, authenticated both ways, and stops listening. Both ends must call it; the higher
  // rank dials, the lower accepts. Strangers, slow clients and broken hellos are dropped, logged once, and do not delay
  // the rest. Output: endpoints[i] belongs to links[i]; null, at both ends, where a device refused a link that
  // has_other. Blocks up to context.deadline. Errors: kTimeout, kAuth or kPeerLost with the peer's rank; what give_up
  // returned. On an error, all links made so far are closed.
  virtual Status Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                         std::vector<std::unique_ptr<Endpoint>>* endpoints) = 0;
};

}  // namespace annulus
