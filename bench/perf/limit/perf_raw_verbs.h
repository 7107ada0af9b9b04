// RawVerbs: a plain RDMA connection to each ring neighbour, straight over libibverbs, which is opened at run time. Data
// is written into the neighbour's memory in large pieces, and each announces itself there.
//
// Threads: one thread at a time.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace annulus::perf {

// The functions of libibverbs that are used.
struct RawVerbsApi;

class RawVerbs {
 public:
  enum Side : size_t { kNext, kPrev };

  // What a neighbour must know: for each side the queue pair, and the memory. As words, to be gathered.
  static constexpr size_t kWords = 11;
  using Words = std::array<int32_t, kWords>;

  // Data that has moved over the connection to one side, in bytes.
  struct Moved {
    uint64_t sent = 0;
    uint64_t received = 0;
  };

  // Opens the device of that name, or the first with an active port when it is "", on its port of RoCE v2 or
  // InfiniBand. The arena's memory outlives it. Errors: kUnsupported, kSystem.
  static Status Open(const std::string& device, const uint8_t* input, uint8_t* output, size_t bytes,
                     std::unique_ptr<RawVerbs>* made);
  ~RawVerbs();
  RawVerbs(const RawVerbs&) = delete;
  RawVerbs& operator=(const RawVerbs&) = delete;

  // This end's words for that side, and the neighbour's.
  Words WordsOf(Side side) const;
  Status Connect(Side side, const Words& peer);

  // Begins to write [at, at + bytes) of the input to the same place of the neighbour's output. Returns false when
  // enough is under way. Errors: kSystem.
  Status Write(Side side, size_t at, size_t bytes, bool* begun);
  // Takes what has completed. Errors: kPeerLost.
  Status Poll();
  const Moved& moved(Side side) const { return sides_[side].moved; }

 private:
  struct End {
    ibv_qp* pair = nullptr;
    uint64_t peer_address = 0;
    uint32_t peer_key = 0;
    int under_way = 0;
    Moved moved;
  };

  RawVerbs() = default;
  Status UsePort(const std::string& device);
  bool FindAddress(ibv_context* context);
  Status MakePair(End* end);
  Status PostReceive(End* end);
  Status Failed(const char* what, int error) const;

  const RawVerbsApi* api_ = nullptr;
  ibv_context* context_ = nullptr;
  ibv_port_attr port_{};
  uint8_t port_number_ = 1;
  int gid_index_ = 0;
  ibv_gid gid_{};
  ibv_pd* domain_ = nullptr;
  ibv_mr* input_ = nullptr;
  ibv_mr* output_ = nullptr;
  ibv_cq* queue_ = nullptr;
  std::array<End, 2> sides_;
};

}  // namespace annulus::perf
