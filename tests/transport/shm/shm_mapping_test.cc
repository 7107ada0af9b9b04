// ShmMapping: what is shared, and that nothing else is accepted from a peer.
#include "transport/shm/shm_mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>

namespace annulus {
namespace {

// A file such as a peer would send: `header` first, `bytes` long.
int PeerFile(const ShmHeader& header, uint64_t bytes, int seals = F_SEAL_SHRINK) {
  const int fd = memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  const size_t head = std::min<uint64_t>(bytes, sizeof(header));
  EXPECT_EQ(pwrite(fd, &header, head, 0), static_cast<ssize_t>(head));
  EXPECT_EQ(seals == 0 ? 0 : fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

ShmHeader GoodHeader() { return {kShmMagic, kShmVersion, 4, 4096, ShmLayout::For(4, 4096).total_bytes}; }

void ExpectRefused(int fd, const std::string& reason) {
  std::unique_ptr<ShmMapping> mapping;
  const Status status = ShmMapping::Open(fd, &mapping);
  EXPECT_EQ(status.code(), Code::kProtocol) << status.ToString();
  EXPECT_NE(status.message().find(reason), std::string::npos) << status.ToString();
  EXPECT_EQ(mapping, nullptr);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "the descriptor leaks";
}

TEST(ShmMapping, BothEndsSeeTheSameMemory) {
  for (const auto& [slots, slot_bytes] : {std::pair{1, 1}, {3, 1000}, {4, 4096}, {8, 256 * 1024}, {2, 5 << 20}}) {
    std::unique_ptr<ShmMapping> made;
    std::unique_ptr<ShmMapping> opened;
    ASSERT_TRUE(ShmMapping::Create(slots, slot_bytes, &made).ok());
    ASSERT_TRUE(ShmMapping::Open(dup(made->fd()), &opened).ok());
    for (int side = 0; side < 2; ++side) {
      const ShmDirection here = made->direction(side);
      const ShmDirection there = opened->direction(side);
      std::byte* last = here.slots + (here.num_slots - 1) * here.slot_stride + here.slot_bytes - 1;
      *last = std::byte{77};
      EXPECT_EQ(there.slots[last - here.slots], std::byte{77});
      here.ring[here.ring_entries - 1].payload[ShmDescriptor::kPayloadBytes - 1] = std::byte{78};
      EXPECT_EQ(there.ring[there.ring_entries - 1].payload[ShmDescriptor::kPayloadBytes - 1], std::byte{78});
      EXPECT_EQ(reinterpret_cast<uintptr_t>(there.slots) % 64, 0u);
    }
  }
}

TEST(ShmMapping, PartsDoNotOverlap) {
  for (const uint32_t slots : {1u, 2u, 7u, 64u, kShmMaxSlots}) {
    const ShmLayout layout = ShmLayout::For(slots, 70000);
    EXPECT_GE(layout.return_offset[0], layout.ring_offset[1] + layout.ring_entries * sizeof(ShmDescriptor));
    EXPECT_GE(layout.return_offset[1], layout.return_offset[0] + layout.return_entries * sizeof(ShmReturn));
    EXPECT_GE(layout.slots_offset[0], layout.return_offset[1] + layout.return_entries * sizeof(ShmReturn));
    EXPECT_GE(layout.slots_offset[1], layout.slots_offset[0] + slots * layout.slot_stride);
    EXPECT_GE(layout.total_bytes, layout.slots_offset[1] + slots * layout.slot_stride);
    EXPECT_GE(layout.return_entries, slots);
    EXPECT_GE(layout.ring_entries, slots);
  }
}

TEST(ShmMapping, SlotsThatFillAHugePageBeginAtOne) {
  std::unique_ptr<ShmMapping> mapping;
  ASSERT_TRUE(ShmMapping::Create(8, 256 * 1024, &mapping).ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping->direction(0).slots) % (2 << 20), 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping->direction(1).slots) % (2 << 20), 0u);
}

TEST(ShmMapping, TheFileCannotBeShrunk) {
  std::unique_ptr<ShmMapping> mapping;
  ASSERT_TRUE(ShmMapping::Create(2, 4096, &mapping).ok());
  EXPECT_NE(ftruncate(mapping->fd(), 0), 0);
}

TEST(ShmMapping, CreateRefusesSizesOutOfRange) {
  std::unique_ptr<ShmMapping> mapping;
  EXPECT_EQ(ShmMapping::Create(0, 4096, &mapping).code(), Code::kInvalidArgument);
  EXPECT_EQ(ShmMapping::Create(-1, 4096, &mapping).code(), Code::kInvalidArgument);
  EXPECT_EQ(ShmMapping::Create(4, 0, &mapping).code(), Code::kInvalidArgument);
  EXPECT_EQ(ShmMapping::Create(4, kShmMaxSlotBytes + 1, &mapping).code(), Code::kInvalidArgument);
}

TEST(ShmMapping, OpenRefusesWhatIsNoSealedMemoryFile) {
  const ShmHeader good = GoodHeader();
  ExpectRefused(PeerFile(good, good.total_bytes, 0), "sealed");
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  ExpectRefused(fds[0], "sealed");
  close(fds[1]);
}

TEST(ShmMapping, OpenRefusesHugePagesWhosePoolMayBeEmpty) {
  const int fd = memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (fd < 0) GTEST_SKIP() << "no huge pages here: " << std::strerror(errno);
  ASSERT_EQ(ftruncate(fd, 2 << 20), 0);
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  ExpectRefused(fd, "no memory file sealed");
}

TEST(ShmMapping, OpenRefusesEveryWrongFieldOfTheHeader) {
  const ShmHeader good = GoodHeader();
  const auto refuse = [&](const std::function<void(ShmHeader*)>& spoil, const std::string& reason) {
    ShmHeader header = good;
    spoil(&header);
    ExpectRefused(PeerFile(header, good.total_bytes), reason);
  };
  refuse([](ShmHeader* header) { header->magic ^= 1; }, "magic");
  refuse([](ShmHeader* header) { header->version = kShmVersion + 1; }, "version 7");
  refuse([](ShmHeader* header) { header->slots = 0; }, "0 slots");
  refuse([](ShmHeader* header) { header->slots = kShmMaxSlots + 1; }, "slots");
  refuse([](ShmHeader* header) { header->slots = 5; }, "bytes");
  refuse([](ShmHeader* header) { header->slot_bytes = 0; }, "slots of 0 bytes");
  refuse([](ShmHeader* header) { header->slot_bytes = ~uint64_t{0}; }, "slots of");
  refuse([](ShmHeader* header) { header->total_bytes += 4096; }, "bytes");
  ExpectRefused(PeerFile(good, good.total_bytes - 4096), "bytes");
  ExpectRefused(PeerFile(good, good.total_bytes + 4096), "bytes");
  ExpectRefused(PeerFile(good, 5), "header");
  ExpectRefused(PeerFile(good, 0), "header");
}

TEST(ShmMapping, LivesInAnAnonymousFileAndNotInDevShm) {
  std::unique_ptr<ShmMapping> mapping;
  ASSERT_TRUE(ShmMapping::Create(8, 1 << 20, &mapping).ok());
  std::memset(mapping->direction(0).slots, 1, 1 << 20);
  std::ifstream maps("/proc/self/maps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    EXPECT_EQ(line.find("/dev/shm"), std::string::npos) << line;
    found |= line.find("/memfd:annulus") != std::string::npos;
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace annulus
