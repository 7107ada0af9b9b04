#include "tests/transport/tcp/cut_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"
#include "transport/security/seal.h"

namespace annulus {
namespace {

// A session as an endpoint that never ends by itself. It is closed when all its sends are complete.
class CutLinkEnd final : public Endpoint, public ShortPath {
 public:
  CutLinkEnd(int peer, const TcpSessionConfig& config, std::vector<SealedSocket> sockets)
      : peer_(peer), session_(config, std::move(sockets)) {
    limits_.slot_bytes = config.slot_bytes;
    limits_.send_slots = limits_.recv_slots = config.slots;
    limits_.sends_from = limits_.lands_in = {MemoryKind::kHost};
    limits_.may_be_made_again = true;
    const size_t most = std::min<size_t>(config.slot_bytes, TcpSession::kMostShortBytes);
    if (session_.has_short_path()) limits_.short_bytes = static_cast<uint32_t>(most);
  }

  TcpSession* session() { return &session_; }

  const Limits& limits() const override { return limits_; }
  int peer() const override { return peer_; }
  std::string Describe() const override { return "a link that is cut"; }
  EndpointStats stats() const override { return {}; }
  Shortcuts shortcuts() override { return {.short_path = session_.has_short_path() ? this : nullptr}; }
  Status AcquireSlot(size_t bytes, std::byte** slot) override {
    std::byte* const taken = session_.LendSlot();
    if (taken == nullptr) return Status::WouldBlock();
    *slot = taken;
    return Status();
  }
  Status PostSend(Send* send) override { return session_.Post(send), Status(); }
  Status PostRecv(Recv* recv) override { return session_.Post(recv) ? Status() : Status::WouldBlock(); }
  void Release(Recv* recv) override { session_.Release(recv); }
  Status Progress(bool* moved) override {
    session_.Transmit(moved);
    return session_.Receive(moved);
  }
  bool Arm() override { return false; }
  bool Close() override {
    if (closed_) return true;
    EXPECT_FALSE(session_.has_sends());
    session_.FailAll(Code::kAborted);
    session_.DiscardInput();
    session_.WriteEnd();
    return closed_ = session_.FindDebt() == TcpSession::Debt::kNothing;
  }

  Status SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes) override {
    return session_.SendCopy(tag, data, bytes) ? Status() : Status::WouldBlock();
  }
  bool Peek(Slice* slice) override { return session_.Peek(slice); }
  void Pop() override { session_.Pop(); }
  bool Flush() override { return session_.FlushCopy(); }

 private:
  const int peer_;
  bool closed_ = false;
  Limits limits_;
  TcpSession session_;
};

}  // namespace

CutLink::CutLink(asio::io_context* context, const CutLinkOptions& options, int first_rank, int second_rank)
    : context_(context), options_(options) {
  const TcpSessionConfig config{
      .slot_bytes = options.slot_bytes, .slots = options.slots, .checksum = options.checksum, .retains = true};
  std::array<std::vector<SealedSocket>, 2> sockets;
  for (int lane = 0; lane < options.lanes; ++lane) {
    wires_.push_back(std::make_unique<CutWire>(context, options.seals));
    for (const size_t side : {0, 1}) sockets[side].push_back(std::move(wires_.back()->sockets[side]));
  }
  for (const size_t side : {0, 1}) {
    const int peer = side == 0 ? second_rank : first_rank;
    auto end = std::make_unique<CutLinkEnd>(peer, config, std::move(sockets[side]));
    sessions_[side] = end->session();
    ends_[side] = std::move(end);
  }
}

uint64_t CutLink::Cut(int lane) {
  std::unique_ptr<CutWire>& wire = wires_[static_cast<size_t>(lane)];
  const uint64_t received[2] = {sessions_[0]->Freeze(lane), sessions_[1]->Freeze(lane)};
  const uint64_t lost[2] = {wire->Kept(0), wire->Kept(1)};
  wire = std::make_unique<CutWire>(context_, options_.seals);
  uint64_t sum = 0;
  for (const size_t side : {0, 1}) {
    bool moved = false;
    uint64_t again = 0;
    const Status status =
        sessions_[side]->Resume(lane, std::move(wire->sockets[side]), received[1 - side], &again, &moved);
    EXPECT_TRUE(status.ok()) << status.ToString();
    // With the last byte of a sealed record, all of it is lost.
    if (options_.seals) {
      EXPECT_LE(again, lost[side] + Seal::kMostInRecord);
    } else {
      EXPECT_EQ(again, lost[side]) << "exactly what was lost is sent again";
    }
    sum += again;
  }
  return sum;
}

}  // namespace annulus
