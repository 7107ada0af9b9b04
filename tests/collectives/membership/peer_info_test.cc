// What ranks tell each other: the bytes of it, and that every setting on which ranks must agree is compared.
#include "collectives/membership/peer_info.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "transport/select/transport_options.h"

namespace annulus {
namespace {

PeerInfo Somebody() {
  PeerInfo info;
  info.member.host_id = "h";
  info.transport = "tcp";
  info.tuning = "nominal";
  info.plan.algorithm = Algorithm::kTree;
  info.plan.slice_bytes = 0x1122;
  info.memory_bytes = 0x3344;
  info.member.cores = {3, 9};
  info.member.addresses.assign(2, "a");
  info.member.reasons.assign(2, "");
  info.further = FurtherTexts(Options());
  return info;
}

// A change of each setting that has a field of its own, by name.
const std::map<std::string, std::function<void(PeerInfo*)>> kChanges = {
    {"transport", [](PeerInfo* info) { info->transport = "shm"; }},
    {"tuning", [](PeerInfo* info) { info->tuning = "measured"; }},
    {"algorithm", [](PeerInfo* info) { info->plan.algorithm.reset(); }},
    {"slice_bytes", [](PeerInfo* info) { ++info->plan.slice_bytes; }},
    {"small_bytes", [](PeerInfo* info) { ++info->plan.small_bytes; }},
    {"channels", [](PeerInfo* info) { ++info->plan.channels; }},
    {"mesh_ranks", [](PeerInfo* info) { ++info->plan.mesh_ranks; }},
    {"priorities", [](PeerInfo* info) { ++info->priorities; }},
    {"memory_bytes", [](PeerInfo* info) { ++info->memory_bytes; }},
};

TEST(PeerInfoTest, HasItsBytes) {
  PeerInfo info = Somebody();
  info.further.clear();
  info.member.has_devices = true;
  using std::string_literals::operator""s;
  const std::string texts = "\1\0h\3\0tcp\7\0nominal\4\0tree"s;
  const std::string sizes = "\x22\x11\0\0\0\0\0\0\0\x40\0\0\0\0\0\0"s;
  const std::string slots = "\1\0\0\0\b\0\0\0\0\0\4\0\0\0\0\0"s;  // Channels, slots, largest slice.
  const std::string numbers = "\x40\0\0\0\0\0\0\0"s;              // Mesh, priorities.
  const std::string memory_and_cores = "\x44\x33\0\0\0\0\0\0\3\0\0\0\t\0\0\0\0\0\0\0"s;
  const std::string devices = "\1\0\0\0"s;
  const std::string addresses = "\1\0a\1\0a\0\0\0\0"s;
  EXPECT_EQ(Encode(info), texts + sizes + slots + numbers + memory_and_cores + devices + addresses);
}

TEST(PeerInfoTest, DevicesAreThereOrNot) {
  PeerInfo info = Somebody(), read;
  std::string blob = Encode(info);
  ASSERT_TRUE(Decode(blob, 1, 2, &read).ok());
  const size_t devices = blob.find(std::string("\3\0\0\0\t", 5)) + 12;  // Behind the cores.
  blob[devices] = 1;
  ASSERT_TRUE(Decode(blob, 1, 2, &read).ok());
  EXPECT_TRUE(read.member.has_devices);
  blob[devices] = 2;
  EXPECT_EQ(Decode(blob, 1, 2, &read).code(), Code::kProtocol);
}

// The corpus of tests/fuzz/bootstrap_fuzz.cc would miss all that lies behind a field that its seeds lack.
TEST(PeerInfoTest, TheSeedForTheFuzzerIsUnderstood) {
  std::ifstream file("tests/fuzz/corpus/bootstrap_fuzz/peer", std::ios::binary);
  const std::string seed{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ASSERT_EQ(seed.substr(0, 1), "\3");
  PeerInfo info;
  EXPECT_TRUE(Decode(seed.substr(1), 0, 2, &info, {}).ok());
}

TEST(PeerInfoTest, AllHaveTheSameIsAgreement) {
  const PeerInfo peers[] = {Somebody(), Somebody(), Somebody()};
  EXPECT_TRUE(CheckAgreement(peers).ok());
}

TEST(PeerInfoTest, EverySettingOnWhichRanksMustAgreeIsComparedAndNoOther) {
  std::set<std::string> agreed;
  for (const Setting& setting : Settings()) {
    if (setting.ranks == Ranks::kMustAgree) agreed.insert(setting.name);
  }
  for (const auto& [name, change] : kChanges) {
    EXPECT_EQ(agreed.erase(name), 1u) << name << " may differ";
    PeerInfo peers[] = {Somebody(), Somebody()};
    change(&peers[1]);
    const Status status = CheckAgreement(peers);
    EXPECT_EQ(status.code(), Code::kMismatch);
    const std::string start =
        std::string(SettingNamed(name).variable) + " must be the same on all ranks: rank 0 has \"";
    EXPECT_TRUE(status.message().starts_with(start)) << status.message();
  }
  ASSERT_EQ(agreed.size() + 1, Somebody().further.size()) << "the last one is the number of ports";
  for (size_t i = 0; i < agreed.size(); ++i) {
    PeerInfo peers[] = {Somebody(), Somebody()};
    peers[1].further[i] += "1";
    EXPECT_EQ(CheckAgreement(peers).code(), Code::kMismatch);
  }
}

TEST(PeerInfoTest, SlotsMustAgreeToo) {
  PeerInfo peers[] = {Somebody(), Somebody()};
  ++peers[1].plan.slots;
  EXPECT_EQ(CheckAgreement(peers).message(),
            "ANNULUS_MEMORY_BYTES has room for 8 slots of up to 262144 bytes on rank 0, for 9 slots of up to 262144 "
            "bytes on rank 1: with it, settings that say how much memory links take (ANNULUS_TCP_SOCKETS, "
            "ANNULUS_RECONNECT_MS) must be the same on all ranks");
  peers[1] = Somebody();
  peers[1].plan.largest_slice_bytes /= 2;
  EXPECT_EQ(CheckAgreement(peers).code(), Code::kMismatch);
  EXPECT_EQ(CheckAgreement(peers).peer(), 1);
}

// Where memory is limited, slots shrink with the ports of links, so ranks must have equally many.
TEST(PeerInfoTest, PortsMustBeEquallyManyWhereMemoryIsLimited) {
  const auto check = [](const std::string& transport, int64_t memory_bytes) {
    const auto* const word = std::ranges::find(kTransportWords, transport);
    std::vector<PeerInfo> peers;
    for (const char* const devices : {"a", "b,c:2"}) {
      Options options;
      options.transport = static_cast<TransportChoice>(word - std::begin(kTransportWords));
      options.memory_bytes = memory_bytes;
      options.verbs_device = devices;
      PeerInfo info = Somebody();
      info.memory_bytes = static_cast<uint64_t>(memory_bytes);
      info.further = FurtherTexts(options);
      peers.emplace_back();
      EXPECT_TRUE(Decode(Encode(info), 0, 2, &peers.back()).ok());
    }
    ++peers[1].plan.slots;  // As a consequence; the cause is to be named.
    return CheckAgreement(peers);
  };
  const Status status = check("verbs", 1 << 30);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_EQ(status.message(),
            "ANNULUS_VERBS_DEVICE must name equally many ports on all ranks where ANNULUS_MEMORY_BYTES is set: rank 0 "
            "names 1, rank 1 names 2");
  EXPECT_TRUE(check("verbs", 0).message().starts_with("ANNULUS_MEMORY_BYTES has room")) << "without a limit";
  EXPECT_TRUE(check("tcp", 1 << 30).message().starts_with("ANNULUS_MEMORY_BYTES has room")) << "over TCP";
}

// What a new row of settings gets without any code here.
TEST(PeerInfoTest, ANewSettingTravelsAndIsCompared) {
  std::vector<Setting> settings(Settings().begin(), Settings().end());
  Setting added = SettingNamed("spin_us");
  added.name = "depth";
  added.variable = "ANNULUS_DEPTH";
  added.ranks = Ranks::kMustAgree;
  settings.push_back(added);

  std::vector<PeerInfo> peers;
  for (const int64_t value : {5, 6}) {
    Options options;
    options.spin_us = value;
    PeerInfo info = Somebody();
    info.further = FurtherTexts(options, settings);
    peers.emplace_back();
    ASSERT_TRUE(Decode(Encode(info), 0, 2, &peers.back(), settings).ok());
    EXPECT_EQ(peers.back().further, info.further);
    EXPECT_EQ(Decode(Encode(info), 4, 2, &info).code(), Code::kProtocol) << "a rank that does not know the setting";
  }
  EXPECT_EQ(CheckAgreement(peers, settings).message(),
            "ANNULUS_DEPTH must be the same on all ranks: rank 0 has \"5\", rank 1 has \"6\"");
}

TEST(PeerInfoTest, EveryAgreedValueFits) {
  for (const Setting& setting : Settings()) {
    if (setting.ranks != Ranks::kMustAgree || !setting.is_text()) continue;
    EXPECT_LE(setting.allowed.max, static_cast<int64_t>(kLargestPeerText)) << setting.name;
  }
}

}  // namespace
}  // namespace annulus
