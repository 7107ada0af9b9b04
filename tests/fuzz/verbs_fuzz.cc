// Fuzz target: what a peer sends over a verbs link. The greeting, the word behind it, the farewell and the word that a
// device has stopped take any bytes, and what is accepted is what the writers write. The receiver takes any
// completions, of one rail or several, with any headers and places, while receives are posted and released and READs
// end in any order: it stays within its memory, and keeps to the contract of its requests. Lists of networks are paired
// within their bounds, and both ends agree.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/transport/verbs/loose_receiver.h"
#include "transport/verbs/device/verbs_network.h"
#include "transport/verbs/rail/verbs_format.h"

namespace annulus {
namespace {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  uint32_t Next() {  // Up to two bytes; 0 at the end.
    if (left_ == 0) return 0;
    uint32_t value = *data_++;
    if (--left_ == 0 || (value & 0x80) == 0) return value;
    --left_;
    return (value & 0x7f) << 8 | *data_++;
  }
  void Fill(std::byte* to, size_t bytes) {
    const size_t count = std::min(bytes, left_);
    std::memset(to, 0, bytes);
    if (count > 0) std::memcpy(to, data_, count);
    data_ += count;
    left_ -= count;
  }
  bool empty() const { return left_ == 0; }

 private:
  const uint8_t* data_;
  size_t left_;
};

void CheckGreeting(Bytes bytes) {
  std::array<std::byte, VerbsGreeting::kBytes> raw;
  bytes.Fill(raw.data(), raw.size());
  VerbsGreeting greeting;
  if (!ReadVerbsGreeting(raw, &greeting).ok()) return;
  std::array<std::byte, VerbsGreeting::kBytes> again;
  WriteVerbsGreeting(greeting, again);
  VerbsGreeting reread;
  ANNULUS_CHECK(ReadVerbsGreeting(again, &reread).ok() && reread.address == greeting.address);
  ANNULUS_CHECK(reread.refused == greeting.refused && reread.continues == greeting.continues);
  ANNULUS_CHECK(greeting.num_rails <= kMostVerbsRails && reread.num_rails == greeting.num_rails);
}

void CheckWord(Bytes bytes) {
  std::array<std::byte, VerbsWord::kBytes> raw;
  bytes.Fill(raw.data(), raw.size());
  VerbsWord word;
  if (!ReadVerbsWord(raw, &word)) return;
  std::array<std::byte, VerbsWord::kBytes> again;
  WriteVerbsWord(word, again);
  ANNULUS_CHECK(raw == again);
}

void CheckFarewell(Bytes bytes) {
  std::array<std::byte, VerbsFarewell::kBytes> raw;
  bytes.Fill(raw.data(), raw.size());
  VerbsFarewell farewell;
  if (!ReadVerbsFarewell(raw, &farewell)) return;
  std::array<std::byte, VerbsFarewell::kBytes> again;
  WriteVerbsFarewell(farewell, again);
  ANNULUS_CHECK(raw == again);
}

void CheckStop(Bytes bytes) {
  std::array<std::byte, VerbsStop::kBytes> raw;
  bytes.Fill(raw.data(), raw.size());
  VerbsStop stop;
  if (!ReadVerbsStop(raw, &stop)) return;
  VerbsFarewell farewell;
  ANNULUS_CHECK(!ReadVerbsFarewell(raw, &farewell));
  std::array<std::byte, VerbsStop::kBytes> again;
  WriteVerbsStop(stop, again);
  ANNULUS_CHECK(raw == again);
}

// The bytes up to the first line break are one rank's networks, the rest another's.
void CheckPairs(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view first = all.substr(0, all.find('\n'));
  const std::string_view second = all.substr(std::min(all.size(), first.size() + 1));
  const auto pairs = PairPorts(first, second);
  ANNULUS_CHECK(!pairs.empty() && pairs.size() <= kMostVerbsPorts);
  std::array<bool, kMostVerbsPorts> taken{};
  for (size_t i = 0; i < pairs.size(); ++i) {
    ANNULUS_CHECK(pairs[i].first < kMostVerbsPorts && pairs[i].second < kMostVerbsPorts);
    ANNULUS_CHECK(i == 0 || pairs[i].first > pairs[i - 1].first);
    ANNULUS_CHECK(!std::exchange(taken[pairs[i].second], true));
  }
}

// READs begin, and some end.
void ReadSome(LooseReceiver* loose, uint32_t slots) {
  loose->receiver().Read();
  for (uint32_t slot = 0; slot < LooseReceiver::kSlots; ++slot) {
    if (loose->reads().is_under_way(slot) && (slots >> slot) % 2 == 1) loose->reads().OnCompletion(slot);
  }
}

// Plays messages as the bytes say. Headers are mostly right, since random ones hardly ever are.
void PlayMessages(Bytes bytes) {
  const size_t rails = 1 + bytes.Next() % 3;
  LooseReceiver loose(static_cast<int>(rails));
  std::vector<Recv> recvs(LooseReceiver::kSlots);
  uint32_t sequence = 0;
  while (!bytes.empty() && !loose.fault().any()) {
    const uint32_t what = bytes.Next();
    Recv& recv = recvs[what / 8 % recvs.size()];
    VerbsHeader header;
    header.bytes = bytes.Next();
    header.ready = what % 16 < 8 ? header.bytes : bytes.Next();
    header.sequence = what / 256 % 2 == 1 ? bytes.Next() : sequence;
    header.released = header.releases = header.taken_slices = what % 64 == 63 ? bytes.Next() : 0;
    const size_t rail = what / 64 % rails;
    const uint32_t index = bytes.Next() % (VerbsQueueDepth(LooseReceiver::kSlots) + 1);
    const bool in_slot = index < LooseReceiver::kSlots;
    const bool in_cell = index < VerbsQueueDepth(LooseReceiver::kSlots);
    switch (what % 8) {
      case 0:
        if (recv.code == Code::kInProgress || recv.data != nullptr) break;
        recv.capacity = static_cast<uint32_t>(LooseReceiver::kSlotBytes);
        ANNULUS_CHECK(loose.receiver().Post(&recv));
        break;
      case 1:
        if (recv.code != Code::kOk || recv.data == nullptr) break;
        loose.receiver().Release(&recv);
        recv.data = nullptr;
        break;
      case 2:
        if (in_slot) loose.Placed(index, header, {what * uint64_t{0x200000000000000}, what}, rail);
        ++sequence;
        break;
      case 3:
        if (in_slot) WriteVerbsHeader(header, loose.slot(index));
        loose.Complete(VerbsKind::kSlice, index, static_cast<uint32_t>(kVerbsHeaderBytes + header.ready), 0, rail);
        ++sequence;
        break;
      case 4:
        loose.Complete(VerbsKind::kPart, header.bytes, header.ready, index, rail);
        break;
      case 5:
      case 6:
        if (in_cell) WriteVerbsHeader(header, loose.cell(index, rail));
        loose.Complete(VerbsKind::kShort, 0, static_cast<uint32_t>(kVerbsHeaderBytes + header.ready), index, rail);
        ++sequence;
        break;
      default:
        if (in_cell) bytes.Fill(loose.cell(index, rail), kVerbsHeaderBytes);
        loose.Complete(VerbsKind::kUpdate, 0, kVerbsHeaderBytes, index, rail);
        break;
    }
    ReadSome(&loose, what);
    loose.receiver().Advance();
    for (const Recv& each : recvs) {
      if (each.data == nullptr || each.code != Code::kOk) continue;
      ANNULUS_CHECK(each.arrived == each.bytes && each.bytes <= each.capacity);
      // All of it can be read and written.
      for (uint32_t i = 0; i < each.bytes; ++i) each.data[i] ^= std::byte{1};
    }
  }
  // What has arrived is delivered, and no more.
  loose.receiver().EndArrivals();
  loose.receiver().Advance();
  ANNULUS_CHECK(!loose.receiver().HasWork() || loose.fault().any());
  loose.receiver().FailAll(Code::kAborted);
}

}  // namespace
}  // namespace annulus

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace annulus;
  CheckGreeting(Bytes(data, size));
  CheckWord(Bytes(data, size));
  CheckFarewell(Bytes(data, size));
  CheckStop(Bytes(data, size));
  CheckPairs(data, size);
  PlayMessages(Bytes(data, size));
  return 0;
}
