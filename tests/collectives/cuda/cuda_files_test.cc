// Descriptors of GPUs' memory on their way to another process: letters that are none, and what a peer may say of them
// that is not so.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/cuda/mapped/cuda_mappings.h"
#include "collectives/cuda/mapped/cuda_pieces.h"
#include "collectives/cuda/mapped/file_post.h"
#include "tests/collectives/cuda/cuda_fixture.h"
#include "tests/cuda/mapped_memory.h"

namespace annulus {
namespace {

constexpr size_t kPiece = size_t{64} << 10;  // The stand-in's granularity.

// Descriptors that this process has.
int OpenFiles() {
  int count = 0;
  for (int file = 0; file < 1024; ++file) count += fcntl(file, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// A letter as it travels: head, then pieces.
struct Raw {
  uint64_t secret = 0;
  uint64_t process = 7;
  uint64_t run = 8;
  uint64_t count = 1;
  FilePiece pieces[kMostFiles + 1] = {};
};

// Sends so many bytes of it, and descriptors.
void SendRaw(const SharedAddress& to, const Raw& raw, size_t bytes, size_t files) {
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const int length = std::snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "annulus-files-%016llx",
                                   static_cast<unsigned long long>(to.name));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
  ASSERT_EQ(connect(connection, reinterpret_cast<const sockaddr*>(&name), size), 0);
  iovec part{const_cast<Raw*>(&raw), bytes};
  std::vector<int> numbers(files, 0);
  alignas(cmsghdr) char attachment[CMSG_SPACE(200 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (files > 0) {
    message.msg_control = attachment;
    message.msg_controllen = CMSG_SPACE(files * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(files * sizeof(int));
    std::memcpy(CMSG_DATA(header), numbers.data(), files * sizeof(int));
  }
  ASSERT_EQ(sendmsg(connection, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  close(connection);
}

constexpr size_t BytesOf(size_t pieces) { return offsetof(Raw, pieces) + pieces * sizeof(FilePiece); }

TEST(FilePostTest, ALetterComesAsItWasSent) {
  const int before = OpenFiles();
  {
    FilePost post;
    ASSERT_TRUE(post.Open().ok());
    FileLetter sent;
    sent.process = 1;
    sent.run = 2;
    for (size_t i = 0; i < kMostFiles; ++i) {
      sent.pieces.push_back({i + 1, i + 2});
      sent.files.push_back(dup(0));
    }
    ASSERT_TRUE(FilePost::Send(post.address(), sent).ok());
    FileLetter came;
    ASSERT_TRUE(post.Take(&came));
    EXPECT_EQ(came.process, 1U);
    EXPECT_EQ(came.run, 2U);
    ASSERT_EQ(came.pieces.size(), kMostFiles);
    ASSERT_EQ(came.files.size(), kMostFiles);
    EXPECT_EQ(came.pieces[63].bytes, 64U);
    EXPECT_EQ(came.pieces[63].id, 65U);
    EXPECT_NE(fcntl(came.files[63], F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_FALSE(post.Take(&came));
    // Nobody takes this one.
    EXPECT_TRUE(FilePost::Send(post.address(), sent).ok());
  }
  EXPECT_EQ(OpenFiles(), before);
}

TEST(FilePostTest, WhatIsNoLetterIsThrownAway) {
  FilePost post;
  ASSERT_TRUE(post.Open().ok());
  const int before = OpenFiles();
  Raw good;
  good.secret = post.address().secret;
  Raw guessed = good;
  ++guessed.secret;
  SendRaw(post.address(), guessed, BytesOf(1), 1);
  for (const uint64_t count : {uint64_t{0}, uint64_t{2}, uint64_t{kMostFiles + 1}, UINT64_MAX, UINT64_MAX / 16}) {
    Raw wrong = good;
    wrong.count = count;
    SendRaw(post.address(), wrong, BytesOf(1), 1);
  }
  Raw many = good;
  many.count = kMostFiles + 1;
  SendRaw(post.address(), many, BytesOf(kMostFiles + 1), kMostFiles + 1);
  SendRaw(post.address(), good, BytesOf(1), 0);
  SendRaw(post.address(), good, BytesOf(1), 2);
  SendRaw(post.address(), good, BytesOf(1), 200);
  SendRaw(post.address(), good, BytesOf(1) - 1, 1);
  SendRaw(post.address(), good, BytesOf(2), 1);
  SendRaw(post.address(), good, 1, 1);
  SendRaw(post.address(), good, BytesOf(1), 1);
  FileLetter letter;
  ASSERT_TRUE(post.Take(&letter));
  EXPECT_EQ(letter.run, 8U);
  EXPECT_FALSE(post.Take(&letter));
  letter = FileLetter();
  EXPECT_EQ(OpenFiles(), before);
}

TEST(FilePostTest, NobodyIsThere) {
  FilePost post;
  ASSERT_TRUE(post.Open().ok());
  const SharedAddress address = post.address();
  post.Close();
  FileLetter letter;
  letter.pieces.push_back({1, 1});
  letter.files.push_back(dup(0));
  EXPECT_EQ(FilePost::Send(address, letter).code(), Code::kSystem);
}

// What this process has exported, as if another had.
class CudaFilesTest : public CudaFixture {
 protected:
  void SetUp() override {
    Start({});
    cuda_ = static_cast<CudaDomain*>(domain_);
    ASSERT_TRUE(cuda_->Use(0, &gpu_).ok());
    ASSERT_TRUE(MappedMemory::Make(cuda_->driver(), gpu_->context(), {3 * kPiece, kPiece, true}, &memory_).ok());
    mappings_.Enter();
  }
  void TearDown() override {
    mappings_.Leave();
    cuda_->pieces().Clear();
    memory_.reset();
    EXPECT_EQ(fake_->Counts().handles, 0);
    EXPECT_EQ(fake_->Counts().ranges, 0);
    CudaFixture::TearDown();
  }

  void Export(size_t bytes, SharedPlace* place, FileLetter* letter) {
    std::shared_ptr<const CudaPieces::Run> run;
    ASSERT_TRUE(cuda_->pieces().Find(*gpu_, memory_->data(), bytes, &run).ok());
    ASSERT_TRUE(run->Export(letter).ok());
    letter->process = place->process = 4711;
    letter->run = run->number();
    std::memcpy(place->handle, &letter->run, sizeof letter->run);
    place->begin = run->begin();
    place->bytes = run->bytes();
    place->files = letter->files.size();
  }
  Status Hold(const SharedPlace& place, FileLetter* letter) {
    std::vector<FileLetter> letters;
    letters.push_back(std::move(*letter));
    std::byte* found = nullptr;
    const Status status = mappings_.Hold(*gpu_, place, letters, &found);
    *letter = std::move(letters.front());
    if (status.ok()) mappings_.Release(*gpu_, found);
    return status;
  }

  CudaDomain* cuda_ = nullptr;
  const CudaDevice* gpu_ = nullptr;
  std::unique_ptr<MappedMemory> memory_;
  CudaMappings mappings_;
};

TEST_F(CudaFilesTest, SizesThatAreNotSoAreRefused) {
  SharedPlace place;
  FileLetter letter;
  Export(3 * kPiece, &place, &letter);
  SharedPlace wrong = place;
  wrong.bytes += kPiece;
  EXPECT_EQ(Hold(wrong, &letter).code(), Code::kInvalidArgument);
  wrong.bytes = place.bytes - kPiece;
  EXPECT_EQ(Hold(wrong, &letter).code(), Code::kInvalidArgument);
  wrong = place;
  wrong.files = 2;
  EXPECT_EQ(Hold(wrong, &letter).code(), Code::kInvalidArgument);
  wrong = place;
  wrong.begin = UINT64_MAX - kPiece;
  EXPECT_EQ(Hold(wrong, &letter).code(), Code::kInvalidArgument);
  letter.pieces[1].bytes = UINT64_MAX - kPiece + 1;  // With the others the same sum, modulo 2^64.
  letter.pieces[2].bytes = 3 * kPiece;
  EXPECT_EQ(Hold(place, &letter).code(), Code::kInvalidArgument);
  letter.pieces[1].bytes = letter.pieces[2].bytes = kPiece;
  EXPECT_TRUE(Hold(place, &letter).ok());
  // What is mapped is not found under another size.
  wrong = place;
  wrong.bytes += kPiece;
  EXPECT_FALSE(Hold(wrong, &letter).ok());
  EXPECT_EQ(fake_->Counts().ranges, 2);
}

TEST_F(CudaFilesTest, APieceBeyondItsEndIsMappedByNoDriverAndNotTriedAgain) {
  SharedPlace place;
  FileLetter letter;
  Export(2 * kPiece, &place, &letter);
  letter.pieces[0].bytes = 2 * kPiece;
  place.bytes = 3 * kPiece;
  EXPECT_EQ(Hold(place, &letter).code(), Code::kSystem);
  EXPECT_EQ(Hold(place, &letter).code(), Code::kUnsupported);
  EXPECT_EQ(fake_->Counts().ranges, 1) << "but that of the memory itself";
}

TEST_F(CudaFilesTest, AFileThatIsNoMemoryOfAGpuIsRefused) {
  SharedPlace place;
  FileLetter letter;
  Export(kPiece, &place, &letter);
  close(letter.files[0]);
  letter.files[0] = dup(0);
  EXPECT_EQ(Hold(place, &letter).code(), Code::kSystem);
}

TEST_F(CudaFilesTest, WithoutItsLetterAPlaceWaits) {
  SharedPlace place;
  FileLetter letter;
  Export(kPiece, &place, &letter);
  ++letter.process;
  EXPECT_TRUE(Hold(place, &letter).would_block());
  --letter.process;
  ++letter.run;
  EXPECT_TRUE(Hold(place, &letter).would_block());
}

TEST_F(CudaFilesTest, OnlyWhatChangedIsClosed) {
  SharedPlace places[3];
  FileLetter letters[3];
  Export(3 * kPiece, &places[0], &letters[0]);
  Export(kPiece, &places[1], &letters[1]);
  EXPECT_TRUE(Hold(places[0], &letters[0]).ok());
  EXPECT_TRUE(Hold(places[1], &letters[1]).ok());
  EXPECT_EQ(fake_->Counts().ranges, 3);
  // The second piece is new: what had only the first stays.
  ASSERT_TRUE(memory_->Replace(1).ok());
  Export(2 * kPiece, &places[2], &letters[2]);
  EXPECT_EQ(letters[2].pieces[0].id, letters[0].pieces[0].id);
  EXPECT_NE(letters[2].pieces[1].id, letters[0].pieces[1].id);
  EXPECT_TRUE(Hold(places[2], &letters[2]).ok());
  EXPECT_EQ(fake_->Counts().ranges, 3);
  EXPECT_EQ(cuda_->pieces().At(letters[0].run), nullptr) << "is held by the process that freed it";
  EXPECT_NE(cuda_->pieces().At(letters[1].run), nullptr);
}

}  // namespace
}  // namespace annulus
