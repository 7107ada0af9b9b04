// The files of registered memory: what is passed to a peer, and what a peer that sends anything can do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "transport/shm/shm_regions.h"

namespace annulus {
namespace {

// A descriptor that has `bytes`, sealed or not.
int File(size_t bytes, int seals) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

std::string FaultOf(ShmPeerRegions* regions) {
  ShmFault fault;
  return regions->HasFault(&fault) ? fault.field : "";
}

std::string FaultOf(const ShmNotice& notice, int fd) {
  ShmPeerRegions regions;
  regions.Feed(reinterpret_cast<const char*>(&notice), sizeof(notice), fd);
  return FaultOf(&regions);
}

TEST(ShmPeerRegionsTest, NoticesAreCheckedBeforeUse) {
  EXPECT_EQ(FaultOf({ShmNotice::kShares, 1, 4096}, File(4096, F_SEAL_SHRINK)), "");
  EXPECT_EQ(FaultOf({ShmNotice::kShares, 1, 4096}, File(4096, 0)), "seals of a registered region's file");
  EXPECT_EQ(FaultOf({ShmNotice::kShares, 1, 8192}, File(4096, F_SEAL_SHRINK)), "bytes of a registered region");
  EXPECT_EQ(FaultOf({ShmNotice::kShares, 1, 0}, File(0, F_SEAL_SHRINK)), "bytes of a registered region");
  EXPECT_EQ(FaultOf({ShmNotice::kShares, 1, 4096}, -1), "memory files with a notice");
  EXPECT_EQ(FaultOf({ShmNotice::kForgets, 1, 0}, -1), "region to forget");
  EXPECT_EQ(FaultOf({0x99, 1, 0}, -1), "kind of a notice");
}

TEST(ShmPeerRegionsTest, NoticesComeInAnyPieces) {
  ShmPeerRegions regions;
  const ShmNotice notice{ShmNotice::kShares, 5, 4096};
  const char* const bytes = reinterpret_cast<const char*>(&notice);
  const char bells[3] = {};
  regions.Feed(bells, 3, -1);
  regions.Feed(bytes, 1, File(4096, F_SEAL_SHRINK));
  regions.Feed(bytes + 1, 20, -1);
  EXPECT_EQ(regions.Hold({5, 0}, 1), nullptr);
  regions.Feed(bytes + 21, sizeof(notice) - 21, -1);
  regions.Feed(bells, 1, -1);
  EXPECT_EQ(FaultOf(&regions), "");
  const std::byte* const held = regions.Hold({5, 4000}, 96);
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(regions.Hold({5, 4000}, 97), nullptr);
  regions.Release(5, held);
  regions.Feed(bytes, sizeof(notice), File(4096, F_SEAL_SHRINK));
  EXPECT_EQ(FaultOf(&regions), "registered region") << "twice";
}

// Where the reader's buffer ended within a notice, the rest comes with the next one, which brings a file of its own.
TEST(ShmPeerRegionsTest, TheRestOfANoticeComesWithTheNextOne) {
  ShmPeerRegions regions;
  const ShmNotice notices[] = {{ShmNotice::kShares, 5, 4096}, {ShmNotice::kShares, 6, 8192}};
  const char* const bytes = reinterpret_cast<const char*>(notices);
  regions.Feed(bytes, 16, File(4096, F_SEAL_SHRINK));
  regions.Feed(bytes + 16, sizeof(notices) - 16, File(8192, F_SEAL_SHRINK));
  EXPECT_EQ(FaultOf(&regions), "");
  for (const uint64_t id : {5, 6}) {
    const std::byte* const held = regions.Hold({id, 0}, static_cast<uint32_t>(4096 * (id - 4)));
    ASSERT_NE(held, nullptr);
    regions.Release(id, held);
  }
}

TEST(ShmPeerRegionsTest, FilesWithoutNoticesAreRefused) {
  ShmPeerRegions regions;
  const ShmNotice notice{ShmNotice::kShares, 5, 4096};
  regions.Feed(reinterpret_cast<const char*>(&notice), 1, File(4096, F_SEAL_SHRINK));
  for (int i = 1; i < 3; ++i) {
    EXPECT_EQ(FaultOf(&regions), "");
    regions.Feed(reinterpret_cast<const char*>(&notice) + i, 1, File(4096, F_SEAL_SHRINK));
  }
  EXPECT_EQ(FaultOf(&regions), "memory files without a notice");
}

// Three regions of this size do not fit into the address space of a process. Those for which there is no room are read
// from their files, into memory that is used again.
TEST(ShmPeerRegionsTest, ARegionThatCannotBeMappedIsCopied) {
  ShmPeerRegions regions;
  for (uint64_t id = 1; id <= 3; ++id) {
    const int fd = File(kShmMostRegionBytes, F_SEAL_SHRINK);
    const char content[] = {static_cast<char>('a' + id), 'x'};
    ASSERT_EQ(pwrite(fd, content, 2, 5000), 2);
    const ShmNotice notice{ShmNotice::kShares, id, kShmMostRegionBytes};
    regions.Feed(reinterpret_cast<const char*>(&notice), sizeof(notice), fd);
    ASSERT_EQ(FaultOf(&regions), "");
  }
  EXPECT_LT(regions.mapped_bytes(), 3 * kShmMostRegionBytes);
  for (uint64_t id = 1; id <= 3; ++id) {
    const std::byte* const one = regions.Hold({id, 5000}, 1);
    const std::byte* const both = regions.Hold({id, 5000}, 2);
    ASSERT_TRUE(one != nullptr && both != nullptr);
    EXPECT_EQ(one[0], static_cast<std::byte>('a' + id));
    EXPECT_EQ(both[1], std::byte{'x'});
    EXPECT_EQ(regions.Hold({id, kShmMostRegionBytes}, 1), nullptr);
    regions.Release(id, both);
    regions.Release(id, one);
    const ShmNotice forgets{ShmNotice::kForgets, id, 0};
    regions.Feed(reinterpret_cast<const char*>(&forgets), sizeof(forgets), -1);
    EXPECT_EQ(regions.Hold({id, 5000}, 1), nullptr);
  }
  EXPECT_EQ(FaultOf(&regions), "");
  EXPECT_EQ(regions.mapped_bytes(), 0u);
}

TEST(ShmOwnRegionsTest, ThePeerGetsAFileThatItCanOnlyRead) {
  MemoryRegistry registry;
  void* memory = nullptr;
  ASSERT_TRUE(registry.Allocate(8192, &memory).ok());
  std::memset(memory, 7, 8192);
  int file = -1;
  ShmOwnRegions regions(&registry, [&file](const ShmNotice&, int fd) {
    file = dup(fd);
    return true;
  });
  ShmPlace place;
  ASSERT_TRUE(regions.Find(static_cast<std::byte*>(memory), 8192, &place));
  EXPECT_EQ(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), MAP_FAILED);
  EXPECT_EQ(pwrite(file, "x", 1, 0), -1);
  EXPECT_NE(fcntl(file, F_GET_SEALS) & F_SEAL_SHRINK, 0);
  char read = 0;
  EXPECT_EQ(pread(file, &read, 1, 8191), 1);
  EXPECT_EQ(read, 7);
  close(file);
  EXPECT_TRUE(registry.Free(memory).ok());
}

TEST(ShmPeerRegionsTest, TwoFilesForOneNoticeAreAFault) {
  ShmPeerRegions regions;
  regions.Feed(nullptr, 0, File(4096, F_SEAL_SHRINK));
  regions.Feed(nullptr, 0, File(4096, F_SEAL_SHRINK));
  EXPECT_EQ(FaultOf(&regions), "memory files without a notice");
}

}  // namespace
}  // namespace annulus
