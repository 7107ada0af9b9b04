// Setting up shared memory links: who is let in, what is handed over, and that nothing is left behind.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>

#include "tests/base/descriptor_limit.h"
#include "tests/transport/shm/shm_meeting.h"
#include "tests/transport/shm/shm_pair.h"
#include "transport/shm/shm.h"
#include "transport/shm/shm_handover.h"

namespace annulus {
namespace {

constexpr char kKey[] = "a key of the shared memory tests";

int OpenDescriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

TEST(ShmConnect, ProbeFindsItUsableHere) {
  Reactor reactor;
  TransportConfig config;
  config.reactor = &reactor;
  const auto transport = CreateShmTransport(config);
  EXPECT_TRUE(transport->Probe().ok()) << transport->Probe().ToString();
  EXPECT_STREQ(transport->Name(), "shm");
}

TEST(ShmConnect, AddressesAreUnguessableAndStayTheSame) {
  Reactor reactor;
  TransportConfig config;
  config.reactor = &reactor;
  std::string address;
  std::string again;
  std::string other;
  const auto transport = CreateShmTransport(config);
  ASSERT_TRUE(transport->LocalAddress(&address).ok());
  ASSERT_TRUE(transport->LocalAddress(&again).ok());
  ASSERT_TRUE(CreateShmTransport(config)->LocalAddress(&other).ok());
  EXPECT_EQ(address, again);
  EXPECT_NE(address, other);
  EXPECT_GE(address.size(), 32u);
}

TEST(ShmConnect, AWrongKeyIsRefused) {
  ShmMeeting meeting;
  meeting.Run(kKey, "not the key of the others", kSecond);
  EXPECT_EQ(meeting.statuses[1].code(), Code::kAuth) << meeting.statuses[1].ToString();
  EXPECT_EQ(meeting.statuses[1].peer(), 0);
  EXPECT_EQ(meeting.statuses[0].code(), Code::kTimeout) << meeting.statuses[0].ToString();
  EXPECT_EQ(meeting.statuses[0].peer(), 1);
  EXPECT_EQ(meeting.endpoints[0], nullptr);
  EXPECT_EQ(meeting.endpoints[1], nullptr);
}

TEST(ShmConnect, TheLowerRanksSlotsHoldForBoth) {
  ShmMeeting meeting;
  meeting.slots[0] = 3;
  meeting.slots[1] = 5;
  meeting.Run(kKey, kKey, kContractPatience);
  ASSERT_TRUE(meeting.endpoints[0] && meeting.endpoints[1]) << meeting.statuses[0].ToString();
  EXPECT_EQ(meeting.endpoints[0]->limits().send_slots, 3);
  EXPECT_EQ(meeting.endpoints[1]->limits().send_slots, 3);
}

TEST(ShmConnect, FiftyLinksLeaveNoDescriptorBehind) {
  const auto connect_once = [] {
    ShmMeeting meeting;
    meeting.Run(kKey, kKey, kContractPatience);
    return meeting.endpoints[0] != nullptr && meeting.endpoints[1] != nullptr;
  };
  ASSERT_TRUE(connect_once());
  const int before = OpenDescriptors();
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(connect_once()) << i;
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(ShmConnect, BrokenRequestsAreRefused) {
  Reactor reactor;
  TransportConfig config;
  config.rank = 1;
  config.nranks = 2;
  config.reactor = &reactor;
  const auto transport = CreateShmTransport(config);
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  const auto connect = [&](int peer, const std::string& address) {
    LinkRequest link;
    link.peer = peer;
    link.address = address;
    ConnectContext context;
    context.deadline = DeadlineAfter(kContractPatience);
    return transport->Connect({&link, 1}, context, &endpoints);
  };
  EXPECT_EQ(connect(0, "").code(), Code::kProtocol);
  EXPECT_EQ(connect(0, std::string(300, 'x')).code(), Code::kProtocol);
  EXPECT_EQ(connect(1, "").code(), Code::kInvalidArgument);
  EXPECT_EQ(connect(2, "").code(), Code::kInvalidArgument);
  EXPECT_TRUE(endpoints.empty());
}

// Hands over between the two ends of a socketpair, of which the test may play one.
class ShmHandoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds_), 0);
    asio::error_code error;
    for (int side = 0; side < 2; ++side) sockets_[side].assign(StreamProtocol(AF_UNIX, 0), fds_[side], error);
    ASSERT_FALSE(error);
  }

  Reactor reactor_;
  int fds_[2] = {-1, -1};
  StreamSocket sockets_[2] = {StreamSocket(reactor_.context()), StreamSocket(reactor_.context())};
  ShmHandover creator_{0, 1, &sockets_[0]};
  ShmHandover mapper_{1, 0, &sockets_[1]};
};

TEST_F(ShmHandoverTest, BothEndsGetTheSameMapping) {
  ASSERT_TRUE(mapper_.Start(4, 4096).ok());
  ASSERT_TRUE(mapper_.Continue().ok());
  EXPECT_FALSE(mapper_.done());
  ASSERT_TRUE(creator_.Start(4, 4096).ok());
  ASSERT_TRUE(creator_.Continue().ok());
  EXPECT_FALSE(creator_.done());
  ASSERT_TRUE(mapper_.Continue().ok());
  EXPECT_TRUE(mapper_.done());
  ASSERT_TRUE(creator_.Continue().ok());
  EXPECT_TRUE(creator_.done());
  const auto created = creator_.TakeMapping();
  const auto mapped = mapper_.TakeMapping();
  created->direction(0).slots[5] = std::byte{55};
  EXPECT_EQ(mapped->direction(0).slots[5], std::byte{55});
  EXPECT_EQ(created->fd(), -1);
  EXPECT_EQ(mapped->fd(), -1);
}

TEST_F(ShmHandoverTest, AMessageWithoutFileIsRefused) {
  ASSERT_EQ(send(fds_[0], "F", 1, 0), 1);
  const Status status = mapper_.Continue();
  EXPECT_EQ(status.code(), Code::kProtocol) << status.ToString();
  EXPECT_EQ(status.peer(), 0);
}

TEST_F(ShmHandoverTest, AFileThatIsNoLinksIsRefusedAndClosed) {
  const int before = OpenDescriptors();
  char byte = 'F';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int standard_input = 0;
  std::memcpy(CMSG_DATA(header), &standard_input, sizeof(int));
  ASSERT_EQ(sendmsg(fds_[0], &message, 0), 1);
  const Status status = mapper_.Continue();
  EXPECT_EQ(status.code(), Code::kProtocol) << status.ToString();
  EXPECT_EQ(status.peer(), 0);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(ShmHandoverTest, ARankWithoutDescriptorsNamesItself) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer of undefined behaviour needs descriptors to look at memory";
#endif
  ASSERT_TRUE(creator_.Start(4, 4096).ok());
  std::optional<DescriptorLimit> none(DescriptorLimit::Next());
  const Status status = mapper_.Continue();
  none.reset();
  EXPECT_EQ(status.code(), Code::kSystem) << status.ToString();
  EXPECT_EQ(status.os_errno(), EMFILE) << status.ToString();
  EXPECT_EQ(status.peer(), 1) << status.ToString();
  EXPECT_NE(status.message().find("no file descriptor left for the memory file of rank 0"), std::string::npos)
      << status.ToString();
}

// Pages of addresses that this process has mapped.
rlim_t MappedPages() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

TEST_F(ShmHandoverTest, ARankWithoutAddressesNamesItself) {
  constexpr rlim_t kLeft = 16 << 20;
  ASSERT_TRUE(creator_.Start(4, kLeft).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit little{MappedPages() * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kLeft, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  const Status status = mapper_.Continue();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(status.code(), Code::kSystem) << status.ToString();
  EXPECT_EQ(status.os_errno(), ENOMEM) << status.ToString();
  EXPECT_EQ(status.peer(), 1) << status.ToString();
  EXPECT_NE(status.message().find("memory file of rank 0"), std::string::npos) << status.ToString();
}

TEST_F(ShmHandoverTest, APeerThatLeavesIsLostOnEitherSide) {
  ASSERT_TRUE(creator_.Start(4, 4096).ok());
  sockets_[1].close();
  EXPECT_EQ(creator_.Continue().code(), Code::kPeerLost);
  sockets_[0].close();
  SetUp();
  sockets_[0].close();
  EXPECT_EQ(mapper_.Continue().code(), Code::kPeerLost);
}

TEST_F(ShmHandoverTest, AnUnknownAnswerIsRefused) {
  ASSERT_TRUE(creator_.Start(4, 4096).ok());
  ASSERT_EQ(send(fds_[1], "x", 1, 0), 1);
  EXPECT_EQ(creator_.Continue().code(), Code::kProtocol);
}

}  // namespace
}  // namespace annulus
