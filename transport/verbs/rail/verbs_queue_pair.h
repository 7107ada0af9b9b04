// VerbsQueuePair: a reliable connection of the device, with receives posted into cells. It knows nothing of slices.
//
// Threads: as the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/verbs/device/verbs_hub.h"
#include "transport/verbs/device/verbs_memory.h"
#include "transport/verbs/rail/verbs_format.h"

namespace annulus {

// How packets travel; from the settings.
struct VerbsPath {
  uint8_t service_level = 0;
  uint8_t traffic_class = 0;
  uint16_t pkey_index = 0;
  uint8_t timeout = 14;
  uint8_t retries = 6;
  bool reads = false;  // Slices may be read, at either end.

  // Time until a request whose peer does not answer fails.
  Nanoseconds Patience() const { return (Nanoseconds{4096} << timeout) * (retries + 1); }
};

class VerbsQueuePair {
 public:
  // `number`: the link's, at the hub.
  VerbsQueuePair(VerbsHub* hub, uint32_t number, uint32_t depth, const VerbsPath& path)
      : hub_(hub), number_(number), depth_(depth), path_(path) {}
  ~VerbsQueuePair() { Destroy(); }
  VerbsQueuePair(const VerbsQueuePair&) = delete;
  VerbsQueuePair& operator=(const VerbsQueuePair&) = delete;

  // Makes the queue pair, with room for `depth` requests per direction. Errors: kSystem.
  Status Create();
  // Fills in this end's part: queue pair, packet number, addresses.
  void Greet(VerbsRailGreeting* greeting) const;
  // Connects it. The receives are posted before. Errors: kSystem; kUnsupported when the networks differ.
  Status Connect(const VerbsRailGreeting& peer);

  // A receive and the cell that it fills: [data, data + kVerbsCellBytes).
  struct Receive {
    ibv_recv_wr request{};
    ibv_sge piece{};
  };
  // Makes the receive `cell`, whose memory has the local key `key`. It stays where it is until it is posted.
  void MakeReceive(uint32_t cell, std::byte* data, uint32_t key, Receive* receive) const;
  // A READ and where it goes.
  struct Read {
    ibv_send_wr request{};
    ibv_sge piece{};
  };
  // Makes a READ of `bytes` of the peer's memory into [to, to + bytes), whose local key is `key`. Its completion has
  // `value`. There is room for as many as reads(), beside all else. It stays where it is until it is posted.
  void MakeRead(uint32_t value, const VerbsPlace& from, std::byte* to, uint32_t bytes, uint32_t key, Read* read) const;

  // Post a chain, by one call of the device. Return 0 or the errno, with *bad the first that was not posted.
  int PostReceives(ibv_recv_wr* first, ibv_recv_wr** bad);
  int PostSends(ibv_send_wr* first, ibv_send_wr** bad);

  // Posts a write of nothing, which asks the peer's device alone. There is room for one at a time, beside all else. Its
  // completion is a kKeepalive. Returns 0 or the errno.
  int PostKeepalive(uint64_t remote_address, uint32_t remote_key);

  // Once it is connected: READs that can be under way at a time, from here and from the peer; 0: none.
  uint32_t reads() const { return reads_; }
  uint32_t answers() const { return answers_; }

  // Largest payload that a request can carry itself, in bytes.
  uint32_t inline_bytes() const { return inline_bytes_; }
  uint64_t SendId(uint32_t value) const { return VerbsHub::IdOf(number_, VerbsRequest::kMessage, value); }

  // Lets the device give back all that it has under way. Returns whether it will.
  bool Fail();
  // Ends it: the device touches no memory of the link any more. Returns 0, or the errno with which the device refused;
  // then it is still there.
  int Destroy();
  bool exists() const { return pair_ != nullptr; }

 private:
  Status Refused(const char* what, int error) const;
  // What the device is able to, by its own word.
  uint8_t MostReads() const;
  uint8_t MostAnswers() const;
  Status ToReceive(const VerbsRailGreeting& peer);
  Status ToSend();

  VerbsHub* const hub_;
  const uint32_t number_;
  const uint32_t depth_;
  const VerbsPath path_;
  ibv_qp* pair_ = nullptr;
  uint32_t inline_bytes_ = 0;
  uint32_t reads_ = 0;
  uint32_t answers_ = 0;
  uint32_t first_packet_ = 0;
};

}  // namespace annulus
