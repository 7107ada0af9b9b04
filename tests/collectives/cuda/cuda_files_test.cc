// Descriptors of GPUs' memory on their way to another process: letters that are none, and what a peer may say of them
// that is not so.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/cuda/mapped/cuda_mappings.h"
#include "collectives/cuda/mapped/cuda_pieces.h"
#include "collectives/cuda/mapped/file_post.h"
#include "collectives/cuda/mapped/retries.h"
#include "collectives/reduce/shared_memory.h"
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

// A sender's socket without what FileSender makes sure of.
class RawSender {
 public:
  static constexpr uint64_t kName = 0x1234567;

  RawSender() = default;
  ~RawSender() { close(socket_); }

  // Names as the library gives them.
  const sockaddr* Name(uint64_t from, uint64_t to) {
    name_ = sockaddr_un();
    name_.sun_family = AF_UNIX;
    std::snprintf(name_.sun_path + 1, sizeof name_.sun_path - 1, "annulus-files-%016llx-%016llx",
                  static_cast<unsigned long long>(from), static_cast<unsigned long long>(to));
    return reinterpret_cast<const sockaddr*>(&name_);
  }
  socklen_t NameBytes() const {
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name_.sun_path + 1));
  }
  int socket() const { return socket_; }
  void Bind() {
    const sockaddr* const name = Name(kName, 0);
    ASSERT_EQ(bind(socket_, name, NameBytes()), 0);
  }

  // Sends so many bytes of it, and descriptors.
  void Send(const SharedAddress& to, const Raw& raw, size_t bytes, size_t files);

 private:
  const int socket_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un name_{};
};

void RawSender::Send(const SharedAddress& to, const Raw& raw, size_t bytes, size_t files) {
  iovec part{const_cast<Raw*>(&raw), bytes};
  std::vector<int> numbers(files, 0);
  alignas(cmsghdr) char attachment[CMSG_SPACE(200 * sizeof(int))] = {};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(Name(kName, to.name));
  message.msg_namelen = NameBytes();
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
  ASSERT_EQ(sendmsg(socket_, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

constexpr size_t BytesOf(size_t pieces) { return offsetof(Raw, pieces) + pieces * sizeof(FilePiece); }

FileLetter LetterOf(size_t pieces) {
  FileLetter letter;
  letter.process = 1;
  letter.run = 2;
  for (size_t i = 0; i < pieces; ++i) {
    letter.pieces.push_back({i + 1, i + 2});
    letter.files.push_back(dup(0));
  }
  return letter;
}

TEST(FilePostTest, ALetterComesAsItWasSent) {
  const int before = OpenFiles();
  {
    FileSender sender;
    FilePost post;
    ASSERT_TRUE(sender.Open().ok());
    ASSERT_TRUE(post.Await(sender.name()).ok());
    const FileLetter sent = LetterOf(kMostFiles);
    ASSERT_TRUE(sender.Send(post.address(), sent).ok());
    FileLetter came;
    EXPECT_FALSE(post.Take(sender.name() + 1, &came));
    ASSERT_TRUE(post.Take(sender.name(), &came));
    EXPECT_EQ(came.process, 1U);
    EXPECT_EQ(came.run, 2U);
    ASSERT_EQ(came.pieces.size(), kMostFiles);
    ASSERT_EQ(came.files.size(), kMostFiles);
    EXPECT_EQ(came.pieces[63].bytes, 64U);
    EXPECT_EQ(came.pieces[63].id, 65U);
    EXPECT_NE(fcntl(came.files[63], F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_FALSE(post.Take(sender.name(), &came));
    // Nobody takes this one.
    EXPECT_TRUE(sender.Send(post.address(), sent).ok());
  }
  EXPECT_EQ(OpenFiles(), before);
}

TEST(FilePostTest, WhatIsNoLetterIsThrownAway) {
  RawSender sender;
  sender.Bind();
  FilePost post;
  ASSERT_TRUE(post.Await(RawSender::kName).ok());
  const SharedAddress& to = post.address();
  const int before = OpenFiles();
  Raw good;
  good.secret = to.secret;
  Raw guessed = good;
  ++guessed.secret;
  sender.Send(to, guessed, BytesOf(1), 1);
  for (const uint64_t count : {uint64_t{0}, uint64_t{2}, uint64_t{kMostFiles + 1}, UINT64_MAX, UINT64_MAX / 16}) {
    Raw wrong = good;
    wrong.count = count;
    sender.Send(to, wrong, BytesOf(1), 1);
  }
  Raw many = good;
  many.count = kMostFiles + 1;
  sender.Send(to, many, BytesOf(kMostFiles + 1), kMostFiles + 1);
  sender.Send(to, good, BytesOf(1), 0);
  sender.Send(to, good, BytesOf(1), 2);
  sender.Send(to, good, BytesOf(1), 200);
  sender.Send(to, good, BytesOf(1) - 1, 1);
  sender.Send(to, good, BytesOf(2), 1);
  sender.Send(to, good, 1, 1);
  sender.Send(to, good, 0, 0);
  sender.Send(to, good, BytesOf(1), 1);
  FileLetter letter;
  ASSERT_TRUE(post.Take(RawSender::kName, &letter));
  EXPECT_EQ(letter.run, 8U);
  EXPECT_FALSE(post.Take(RawSender::kName, &letter));
  letter = FileLetter();
  EXPECT_EQ(OpenFiles(), before);
}

TEST(FilePostTest, NobodyIsThere) {
  FileSender sender;
  FilePost post;
  ASSERT_TRUE(sender.Open().ok());
  ASSERT_TRUE(post.Await(sender.name()).ok());
  const SharedAddress address = post.address();
  post.Close();
  EXPECT_EQ(sender.Send(address, LetterOf(1)).code(), Code::kSystem);
  EXPECT_EQ(post.Await(sender.name() + 1).code(), Code::kSystem) << "no such sender";
}

// What any other process of the host may try, which finds the names in /proc/net/unix. Returns what succeeded.
std::string Disturb(uint64_t from, const SharedAddress& to) {
  RawSender names;
  std::string done;
  const auto is_refused = [&](const char* what, ssize_t result, int why) {
    if (result >= 0 || errno != why) done += std::string(what) + "; ";
  };
  char bytes[64] = {};
  for (int i = 0; i < 1000; ++i) {
    const sockaddr* const post = names.Name(from, to.name);
    is_refused("sent to the post", sendto(names.socket(), bytes, sizeof bytes, 0, post, names.NameBytes()), EPERM);
    is_refused("connected to the post", connect(names.socket(), post, names.NameBytes()), EPERM);
    const sockaddr* const sender = names.Name(from, 0);
    is_refused("sent to the sender", sendto(names.socket(), bytes, sizeof bytes, 0, sender, names.NameBytes()), EPIPE);
  }
  const int stream = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const sockaddr* const post = names.Name(from, to.name);
  if (connect(stream, post, names.NameBytes()) == 0) done += "connected by a stream; ";
  close(stream);
  return done;
}

TEST(FilePostTest, NoOtherProcessCanSendThereOrFillIt) {
  FileSender sender;
  FilePost post;
  ASSERT_TRUE(sender.Open().ok());
  ASSERT_TRUE(post.Await(sender.name()).ok());
  // One of this user, and one of another, where there are others.
  for (const bool is_other_user : {false, true}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      signal(SIGPIPE, SIG_IGN);
      if (is_other_user && setuid(65534) != 0) _exit(0);
      const std::string done = Disturb(sender.name(), post.address());
      std::fprintf(stderr, "%s", done.c_str());
      _exit(done.empty() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    ASSERT_TRUE(sender.Send(post.address(), LetterOf(3)).ok());
  }
  FileLetter letter;
  EXPECT_TRUE(post.Take(sender.name(), &letter));
  EXPECT_TRUE(post.Take(sender.name(), &letter));
  EXPECT_FALSE(post.Take(sender.name(), &letter));
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
    queue_.reset();
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
  Status Hold(const SharedPlace& place, const FileLetter* letter) {
    std::byte* found = nullptr;
    const Status status = mappings_.Hold(*gpu_, place, letter, &found);
    if (status.ok()) mappings_.Release(found);
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

TEST_F(CudaFilesTest, WhatCouldNotBeMappedIsTriedAgainLater) {
  SharedPlace place;
  FileLetter letter;
  Export(kPiece, &place, &letter);
  fake_->Fail("cuMemImportFromShareableHandle", cuda::Result::kOutOfMemory, 0);
  EXPECT_EQ(Hold(place, &letter).code(), Code::kOutOfMemory);
  for (int i = 0; i < Retries::kFirstPause; ++i) EXPECT_EQ(Hold(place, nullptr).code(), Code::kUnsupported);
  EXPECT_TRUE(Hold(place, nullptr).would_block());
  EXPECT_TRUE(Hold(place, &letter).ok());
}

TEST_F(CudaFilesTest, WhatCouldNotBeSentIsOfferedAgainLater) {
  SharedMemory* const shared = queue_->shared();
  SharedPlace place;
  const auto offers = [&] { return shared->Export(memory_->data(), kPiece, &place) == 0; };
  ASSERT_TRUE(offers());
  for (int pause = Retries::kFirstPause; pause < 100; pause *= 2) {
    EXPECT_EQ(shared->Send(place, {1, 2}).code(), Code::kSystem) << "nobody is there";
    for (int i = 0; i < pause; ++i) EXPECT_FALSE(offers());
    ASSERT_TRUE(offers());
  }
  FilePost post;
  FileLetter letter;
  ASSERT_TRUE(post.Await(place.from).ok());
  ASSERT_TRUE(shared->Send(place, post.address()).ok());
  EXPECT_TRUE(post.Take(place.from, &letter));
  // What others have got is offered, whatever becomes of letters with other memory.
  SharedPlace other;
  ASSERT_EQ(shared->Export(memory_->data(), 2 * kPiece, &other), 0);
  EXPECT_EQ(shared->Send(other, {1, 2}).code(), Code::kSystem);
  EXPECT_EQ(shared->Export(memory_->data(), 2 * kPiece, &other), -1);
  EXPECT_TRUE(offers());
}

TEST_F(CudaFilesTest, WhatTheDriverGaveNoDescriptorsOfIsOfferedAgainLater) {
  SharedMemory* const shared = queue_->shared();
  SharedPlace place;
  SharedPlace other;
  ASSERT_EQ(shared->Export(memory_->data(), kPiece, &place), 0);
  fake_->Fail("cuMemExportToShareableHandle", cuda::Result::kNotSupported, 0);
  EXPECT_FALSE(shared->Send(place, {1, 2}).ok());
  for (int i = 0; i < Retries::kFirstPause; ++i) {
    EXPECT_EQ(shared->Export(memory_->data(), kPiece, &place), -1);
    EXPECT_EQ(shared->Export(memory_->data(), 2 * kPiece, &other), 0);
  }
  EXPECT_EQ(shared->Export(memory_->data(), kPiece, &place), 0);
}

TEST_F(CudaFilesTest, WhatDidNotComeIsAskedForAgainLater) {
  SharedMemory* const shared = queue_->shared();
  SharedPlace place;
  FileLetter letter;
  FileSender sender;
  ASSERT_TRUE(sender.Open().ok());
  Export(kPiece, &place, &letter);
  place.from = sender.name();
  std::byte* found = nullptr;
  SharedAddress to;
  const auto import = [&] { return shared->Import(0, place, kPiece, &found); };
  for (int pause = Retries::kFirstPause; pause < 100; pause *= 2) {
    EXPECT_TRUE(import().would_block());
    ASSERT_TRUE(shared->Await(&to).ok());
    EXPECT_TRUE(import().would_block());
    EXPECT_TRUE(import().would_block());
    shared->Release();
    for (int i = 0; i < pause; ++i) EXPECT_EQ(import().code(), Code::kUnsupported);
    shared->Release();
  }
  EXPECT_TRUE(import().would_block());
  ASSERT_TRUE(shared->Await(&to).ok());
  ASSERT_TRUE(sender.Send(to, letter).ok());
  EXPECT_TRUE(import().ok());
  shared->Release();
}

TEST_F(CudaFilesTest, LettersAreMappedOneByOne) {
  SharedMemory* const shared = queue_->shared();
  SharedPlace places[3];
  FileSender sender;
  ASSERT_TRUE(sender.Open().ok());
  std::byte* found = nullptr;
  SharedAddress to;
  for (size_t i = 0; i < 3; ++i) {
    FileLetter letter;
    Export((i + 1) * kPiece, &places[i], &letter);
    places[i].from = sender.name();
    EXPECT_TRUE(i == 2 || shared->Import(0, places[i], kPiece, &found).would_block());
    ASSERT_TRUE(i == 2 || shared->Await(&to).ok());
    ASSERT_TRUE(sender.Send(to, letter).ok());
  }
  const int64_t before = OpenFiles() - fake_->Counts().handles;  // The stand-in keeps one for each.
  EXPECT_TRUE(shared->Import(0, places[0], kPiece, &found).ok());
  EXPECT_EQ(OpenFiles() - fake_->Counts().handles, before);
  EXPECT_EQ(fake_->Counts().imports, 3) << "what is needed of the three letters";
  EXPECT_TRUE(shared->Import(0, places[1], kPiece, &found).ok());
  shared->Release();
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
