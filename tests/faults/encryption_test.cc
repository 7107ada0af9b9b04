// ANNULUS_ENCRYPT: what a job puts on the wire, and what ranks with different settings are told. The capture needs
// root, for network namespaces.
#include <annulus.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/faults/spread_job.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 60 * kSecond;
// Bytes to be captured: those of many calls.
constexpr size_t kEnough = 8'000'000;

// All packets that a host's interfaces see, from Start on.
class Capture {
 public:
  explicit Capture(std::vector<std::string> texts) : texts_(std::move(texts)), found_(texts_.size()) {}
  ~Capture() { Stop(); }

  // In the namespace of the calling thread.
  void Start() {
    fd_ = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));
    ASSERT_GE(fd_, 0) << std::strerror(errno);
    const timeval wait{.tv_sec = 0, .tv_usec = 50'000};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    // What does not fit in is not seen.
    const int room = 64 << 20;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    thread_ = std::thread([this] { Run(); });
  }
  void Stop() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  size_t bytes() const { return bytes_; }
  // How many packets had the text of that number.
  size_t found(size_t text) const { return found_[text]; }

 private:
  void Run() {
    std::vector<char> packet(size_t{1} << 18);
    while (!ended_) {
      const ssize_t got = ::recv(fd_, packet.data(), packet.size(), 0);
      if (got <= 0) continue;
      bytes_ += static_cast<size_t>(got);
      const std::string_view seen(packet.data(), static_cast<size_t>(got));
      for (size_t i = 0; i < texts_.size(); ++i) found_[i] += seen.find(texts_[i]) != std::string_view::npos ? 1 : 0;
    }
  }

  const std::vector<std::string> texts_;
  std::vector<std::atomic<size_t>> found_;
  std::atomic<size_t> bytes_ = 0;
  int fd_ = -1;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

std::string Floats(float value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

// What the worker sends and receives (worker.cc), and what ranks say of themselves at the rendezvous.
enum Text { kDataOfRank0, kDataOfRank1, kSums, kAddresses };

std::vector<std::string> Texts() { return {Floats(1, 16), Floats(2, 16), Floats(6, 16), "10.77.0."}; }

class EncryptionOnTheWireTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!job_.MakeHosts(&why)) GTEST_SKIP() << why;
  }

  void Work(const char* encrypt) {
    job_.hosts().Enter(0);
    capture_.Start();
    ASSERT_FALSE(HasFatalFailure());
    job_.Start({{"ANNULUS_ENCRYPT", encrypt}, {"ANNULUS_TIMEOUT_MS", "60000"}});
    // However slow the ranks and the capture are.
    const Nanoseconds until = Now() + kPatience;
    while (capture_.bytes() < kEnough && Now() < until) job_.Work(50 * kMillisecond);
    job_.ExpectGoodEnd();
    capture_.Stop();
    EXPECT_GE(capture_.bytes(), kEnough);
  }

  SpreadJob job_;
  Capture capture_{Texts()};
};

TEST_F(EncryptionOnTheWireTest, WithoutItTheDataIsThereToRead) {
  Work("off");
  EXPECT_GT(capture_.found(kDataOfRank0), 0u);
  EXPECT_GT(capture_.found(kSums), 0u);
  EXPECT_GT(capture_.found(kAddresses), 0u);
}

TEST_F(EncryptionOnTheWireTest, WithItNothingIs) {
  Work("required");
  for (size_t text = 0; text < Texts().size(); ++text) EXPECT_EQ(capture_.found(text), 0u) << text;
  EXPECT_GT(job_.ranks().worker(0).CountLines(", encrypted"), 0) << job_.Outputs();
}

TEST(EncryptionSettings, RanksThatDifferAreToldSoByName) {
  const std::string settings[] = {"off", "required"};
  for (const int encrypting : {0, 1}) {
    RankProcesses ranks(2, {{"ANNULUS_TRANSPORT", "tcp"}});
    for (int rank = 0; rank < 2; ++rank) {
      ranks.Start(rank, {"loop"}, {{"ANNULUS_ENCRYPT", settings[rank == encrypting]}});
    }
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(ranks.worker(rank).ExitStatus(Now() + kPatience), 1) << ranks.output(rank);
      EXPECT_EQ(ranks.worker(rank).CountLines("create " + std::to_string(ANNULUS_MISMATCH)), 1) << ranks.output(rank);
      const std::string words = "rank " + std::to_string(1 - rank) +
                                " has ANNULUS_ENCRYPT=" + settings[1 - rank == encrypting] + ", this rank (" +
                                std::to_string(rank) + ") has ANNULUS_ENCRYPT=" + settings[rank == encrypting];
      EXPECT_NE(ranks.output(rank).find(words), std::string::npos) << ranks.output(rank);
    }
  }
}

TEST(EncryptionSettings, NeedsAKey) {
  RankProcesses ranks(2, {{"ANNULUS_ENCRYPT", "required"}, {"ANNULUS_JOB_KEY", ""}, {"ANNULUS_INSECURE", "1"}});
  for (int rank = 0; rank < 2; ++rank) ranks.Start(rank, {"loop"});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.worker(rank).ExitStatus(Now() + kPatience), 1) << ranks.output(rank);
    EXPECT_NE(ranks.output(rank).find("encrypt (ANNULUS_ENCRYPT) is required, which needs a secret"), std::string::npos)
        << ranks.output(rank);
  }
}

}  // namespace
}  // namespace annulus
