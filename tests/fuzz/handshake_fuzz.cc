// Fuzz target: Handshake::Feed takes any bytes in any pieces, and nobody gets in with an altered exchange.
//
// Input: byte 0 bit 0 the role under test, bit 1 whether the peer is real; byte 1 the size of pieces; then either the
// raw bytes to feed, or pairs (offset, value) by which the real peer's bytes are altered.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "transport/security/auth.h"

namespace annulus {
namespace {

constexpr char kKey[] = "the key of this fuzz target";

// Returns whether all was taken without an error.
bool Feed(Handshake* to, std::span<const std::byte> bytes, size_t piece) {
  while (!bytes.empty() && to->Wants() > 0) {
    const size_t now = std::min({piece, bytes.size(), to->Wants()});
    const Status status = to->Feed(bytes.first(now));
    if (!status.ok()) {
      ANNULUS_CHECK(to->state() == Handshake::State::kFailed && to->Wants() == 0 && !status.message().empty());
      return false;
    }
    bytes = bytes.subspan(now);
  }
  return true;
}

std::vector<std::byte> TakeOutput(Handshake* from) {
  const std::span<const std::byte> output = from->Output();
  std::vector<std::byte> bytes(output.begin(), output.end());
  from->Sent(bytes.size());
  return bytes;
}

void FeedRaw(Handshake* victim, std::span<const std::byte> bytes, size_t piece) {
  while (!bytes.empty() && victim->Wants() > 0) {
    const size_t now = std::min(bytes.size(), victim->Wants());
    if (!Feed(victim, bytes.first(now), piece)) break;
    bytes = bytes.subspan(now);
    TakeOutput(victim);
  }
  ANNULUS_CHECK(victim->state() != Handshake::State::kDone);
}

void FeedAltered(Handshake* victim, Handshake* peer, std::span<const uint8_t> patches, size_t piece) {
  bool altered = false;
  size_t carried = 0;
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<std::byte> bytes = TakeOutput(peer);
    const std::vector<std::byte> sent = bytes;
    for (size_t i = 0; i + 1 < patches.size(); i += 2) {
      if (patches[i] >= carried && patches[i] < carried + bytes.size()) {
        bytes[patches[i] - carried] ^= static_cast<std::byte>(patches[i + 1]);
      }
    }
    altered |= bytes != sent;
    carried += bytes.size();
    if (!Feed(victim, bytes, piece) || !Feed(peer, TakeOutput(victim), piece)) break;
  }
  const bool both = victim->state() == Handshake::State::kDone && peer->state() == Handshake::State::kDone;
  ANNULUS_CHECK(both == !altered);
}

}  // namespace
}  // namespace annulus

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace annulus;
  if (size < 2) return 0;
  const bool initiates = (data[0] & 1) != 0;
  const size_t piece = 1 + data[1];
  Handshake initiator(Handshake::Role::kInitiator, kKey,
                      {.identity = {.job = 1}, .nranks = 2, .rank = 1, .target_rank = 0});
  Handshake acceptor(Handshake::Role::kAcceptor, kKey, {.identity = {.job = 1}, .nranks = 2, .rank = 0});
  Handshake* victim = initiates ? &initiator : &acceptor;
  Handshake* peer = initiates ? &acceptor : &initiator;
  const std::span<const uint8_t> rest(data + 2, size - 2);
  if ((data[0] & 2) == 0) {
    FeedRaw(victim, std::as_bytes(rest), piece);
  } else {
    if (initiates && !Feed(&acceptor, TakeOutput(&initiator), piece)) return 0;
    FeedAltered(victim, peer, rest, piece);
  }
  return 0;
}
