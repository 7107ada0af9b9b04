// VerbsOutbox: the sending half of a rail: a chain of requests, the receives that the peer has posted for them, and
// what this end has to return on the rail: receives for messages that it has taken.
//
// The last receives and the last places in the queue are reserved for returning credits. The very last receive is only
// for an update that returns at least half of all receives. When two of those cross, each end has receives again; so
// two ends that wait for each other's credits can always send some. An update that returned only slots would give
// nothing for the receive that it takes.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/verbs/device/verbs_regions.h"
#include "transport/verbs/rail/verbs_chain.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_queue_pair.h"
#include "transport/verbs/rail/verbs_returns.h"

namespace annulus {

class VerbsOutbox {
 public:
  // `index`: the rail's, in its link. `headers`: memory of HeadersBytes(slots). The pointers outlive it.
  VerbsOutbox(uint32_t index, int slots, std::byte* headers, const VerbsPortRegions& regions, VerbsQueuePair* pair,
              VerbsFault* fault)
      : index_(index),
        depth_(VerbsQueueDepth(slots)),
        headers_(headers),
        regions_(regions),
        fault_(fault),
        chain_(depth_, pair, fault),
        bytes_at_(VerbsHeaders(slots), 0) {}

  uint32_t index() const { return index_; }

  // Local key of this end's slots and headers; remote key of the peer's slots.
  void SetKey(uint32_t key) { key_ = key; }
  void Reach(uint32_t remote_key) { remote_key_ = remote_key; }
  uint32_t remote_key() const { return remote_key_; }

  VerbsChain& chain() { return chain_; }
  const VerbsChain& chain() const { return chain_; }

  const VerbsPortRegions& regions() const { return regions_; }
  // The device's keys of a region in use.
  VerbsKeys KeysOf(VerbsUse use) const { return regions_.all->KeysOf(use, regions_.port); }
  // Memory of the sender.
  VerbsPiece Own(const std::byte* data, size_t bytes) const { return {data, bytes, key_}; }
  // Where a header, and a place behind it, lies until the next request is completed.
  std::byte* NextHeader() { return headers_ + Place(chain_.posted()) * kHeaderStride; }
  // All of that; nobody's once the device has stopped.
  std::span<std::byte> headers() const { return {headers_, bytes_at_.size() * kHeaderStride}; }
  static constexpr size_t HeadersBytes(int slots) { return VerbsHeaders(slots) * kHeaderStride; }

  // Whether a message of a slice can go now.
  bool CanSend() const { return Credits() >= kReserve && chain_.Room() > kReserve; }
  // Whether an update can. `half_of_receives`: it returns so many at least.
  bool CanUpdate(bool half_of_receives) const { return Credits() >= (half_of_receives ? 1U : 2U) && chain_.Room() > 1; }
  // Bytes of writes that the device has not reported as done, and of slices that the peer is to read.
  uint64_t bytes_under_way() const { return bytes_posted_ - bytes_at_[Place(chain_.completed())] + placed_bytes_; }
  // A slice of so many bytes is to be read by the peer over this rail; it has been.
  void AddPlaced(uint32_t bytes) { placed_bytes_ += bytes; }
  void RemovePlaced(uint32_t bytes) { placed_bytes_ -= bytes; }

  ibv_send_wr* AddMessage(ibv_wr_opcode opcode, VerbsImmediate immediate, const VerbsPiece& first,
                          const VerbsPiece& second = {}) {
    ++messages_;
    if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) bytes_posted_ += first.bytes + second.bytes;
    bytes_at_[Place(messages_)] = bytes_posted_;
    return chain_.Add(opcode, immediate, first, second);
  }
  // Messages that were sent, modulo 2^32: one for each request, but that of a flush, which comes last.
  uint32_t messages() const { return messages_; }
  // Number of them that the peer's device has acknowledged.
  uint32_t acknowledged() const { return all_acknowledged() ? messages_ : chain_.completed(); }
  bool all_acknowledged() const { return chain_.posted() == chain_.completed(); }
  // Bytes of all writes so far, headers included.
  uint64_t written_bytes() const { return bytes_posted_; }

  // The peer's header says how many messages of this rail it has taken.
  void OnCredits(uint32_t taken) {
    if (taken - peer_.taken > messages_ - peer_.taken) return fault_->Set("a count of taken messages", taken);
    peer_.taken = taken;
  }
  // The peer has left after `received` messages, modulo 2^32.
  void OnFarewell(uint32_t received) {
    peer_.has_left = true;
    peer_.received = received;
  }
  // Whether the peer's farewell counts message `number` as received.
  bool HasReceived(uint32_t number) const { return peer_.has_left && VerbsReached(peer_.received, number); }

  // A message of the peer has been taken, so its receive is posted again.
  void CountTaken() { ++taken_; }
  uint32_t taken() const { return taken_; }
  // The number for a header, which tells of all that were taken.
  uint32_t TellTaken() { return told_taken_ = taken_; }
  // Whether at least half of all receives are to be returned.
  bool receives_due() const { return 2 * (taken_ - told_taken_) >= depth_; }

 private:
  // Receives of the peer, and places in the send queue, that slices leave free.
  static constexpr uint32_t kReserve = 3;

  static constexpr size_t kHeaderStride = kVerbsHeaderBytes + kVerbsPlaceBytes;

  // Messages as the peer has counted them.
  struct Peer {
    uint32_t taken = 0;     // The last VerbsHeader::taken.
    uint32_t received = 0;  // As in its farewell.
    bool has_left = false;  // There was one.
  };

  // The place of a request among headers, of which there is a power of two.
  size_t Place(uint32_t request) const { return request & (bytes_at_.size() - 1); }
  uint32_t Credits() const { return depth_ - (messages_ - peer_.taken); }

  const uint32_t index_;
  const uint32_t depth_;
  std::byte* const headers_;
  const VerbsPortRegions regions_;
  VerbsFault* const fault_;
  uint32_t key_ = 0;
  uint32_t remote_key_ = 0;
  VerbsChain chain_;
  uint32_t messages_ = 0;
  uint64_t bytes_posted_ = 0;
  uint64_t placed_bytes_ = 0;
  // By request: bytes_posted_ once it was added. As many as headers, so those under way are there.
  std::vector<uint64_t> bytes_at_;
  Peer peer_;
  uint32_t taken_ = 0;  // As in VerbsHeader.
  uint32_t told_taken_ = 0;
};

}  // namespace annulus
