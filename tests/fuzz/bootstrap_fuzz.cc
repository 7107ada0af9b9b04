// Fuzz target: the messages of the rendezvous, and what ranks tell of themselves in them, may be anything. What is
// taken is within its limits, and is encoded to the same bytes again.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "base/check.h"
#include "collectives/control/verdict.h"
#include "collectives/membership/bootstrap_messages.h"
#include "collectives/membership/peer_info.h"

namespace annulus {
namespace {

std::string TextOf(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void CheckJoin(std::span<const std::byte> body) {
  JoinMessage join;
  if (!Decode(body, &join)) return;
  ANNULUS_CHECK(join.patience >= 0 && join.blob.size() <= kMostBlobBytes);
  // More patience than there is time is cut.
  if (join.patience != kNoDeadline) ANNULUS_CHECK(Encode(join) == TextOf(body));
}

void CheckTable(std::span<const std::byte> body, int nranks) {
  TableMessage table;
  if (!Decode(body, nranks, &table)) return;
  ANNULUS_CHECK(table.blobs.size() == static_cast<size_t>(nranks) && Encode(table) == TextOf(body));
}

void CheckRefusal(std::span<const std::byte> body) {
  ByteReader in(body);
  Status refusal;
  if (!ReadStatus(&in, &refusal) || !in.done()) return;
  ANNULUS_CHECK(!refusal.ok() && !refusal.would_block());
  ByteWriter out;
  WriteStatus(refusal, &out);
  ANNULUS_CHECK(out.bytes() == TextOf(body));
}

void CheckPeerInfo(std::span<const std::byte> body) {
  PeerInfo info;
  const std::string blob = TextOf(body);
  constexpr size_t kTransports = 2;
  // Without the rows of settings, each of which is one more text, so that a new one leaves the corpus as it is.
  constexpr std::span<const Setting> kSettings;
  const Status status = Decode(blob, 3, kTransports, &info, kSettings);
  if (!status.ok()) {
    ANNULUS_CHECK(status.code() == Code::kProtocol && status.peer() == 3);
    return;
  }
  ANNULUS_CHECK(Encode(info) == blob);
  // Whatever it says, it is compared with what this rank has, and only what agrees is used.
  PeerInfo own;
  own.member.addresses.resize(info.member.addresses.size());
  own.further.resize(info.further.size());
  const PeerInfo peers[] = {own, info};
  const Status agreed = CheckAgreement(peers, kSettings);
  ANNULUS_CHECK(agreed.ok() || agreed.code() == Code::kMismatch);
  if (agreed.ok()) ANNULUS_CHECK(info.plan.channels == own.plan.channels && info.plan.slots == own.plan.slots);
}

}  // namespace
}  // namespace annulus

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace annulus;
  if (size < 1) return 0;
  const std::span<const std::byte> body = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 4) {
    case 0:
      CheckJoin(body);
      break;
    case 1:
      CheckTable(body, 1 + data[0] / 4);
      break;
    case 2:
      CheckRefusal(body);
      break;
    default:
      CheckPeerInfo(body);
  }
  return 0;
}
