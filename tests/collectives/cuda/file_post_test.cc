// Descriptors on their way to another process: letters that are none, and what other processes may try.
#include "collectives/cuda/mapped/file_post.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "collectives/reduce/shared_memory.h"
#include "tests/collectives/cuda/open_files.h"

namespace annulus {
namespace {

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

}  // namespace
}  // namespace annulus
