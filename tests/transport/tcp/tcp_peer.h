// RawTcpPeer: rank 1 of a TCP link, which has shaken hands as it should and from then on sends whatever a test wants.
//
// Threads: one, beside the one that Open() runs for the handshake.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "transport/address.h"
#include "transport/reactor.h"
#include "transport/security/connector.h"
#include "transport/tcp/tcp.h"
#include "transport/transport.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/frame.h"

namespace annulus {

constexpr Nanoseconds kTcpPatience = 60 * kSecond;
constexpr char kTcpKey[] = "the key of the TCP tests";
constexpr uint64_t kTcpJob = 4711;

inline TransportConfig TcpConfig(int rank, Reactor* reactor, int nranks = 2) {
  TransportConfig config;
  config.rank = rank;
  config.nranks = nranks;
  config.job_key = kTcpKey;
  config.slot_bytes = 4096;
  config.slots = 4;
  config.local_host = "127.0.0.1";
  config.settings.Set("tcp_sockets", 1);
  config.reactor = reactor;
  return config;
}

inline ConnectContext TcpContext(Nanoseconds patience = kTcpPatience) {
  ConnectContext context;
  context.identity.job = kTcpJob;
  context.deadline = DeadlineAfter(patience);
  return context;
}

// The socket address in a TCP transport's blob, "LANES HOST:PORT TICKET".
inline StreamEndpoint EndpointOfBlob(const std::string& blob) {
  std::string lanes, address;
  std::istringstream(blob) >> lanes >> address;
  StreamEndpoint endpoint;
  EXPECT_TRUE(ParseEndpoint(address, &endpoint).ok()) << blob;
  return endpoint;
}

inline bool Mentions(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

using Bytes = std::vector<std::byte>;

inline Bytes Payload(size_t bytes, int seed) {
  Bytes payload(bytes);
  for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(seed * 31 + i * 7 + (i >> 8));
  return payload;
}

inline Recv Expecting(uint32_t capacity) {
  Recv recv;
  recv.capacity = capacity;
  return recv;
}

inline Send Sending(const Bytes& data, uint32_t ready) {
  Send send;
  send.data = data.data();
  send.bytes = static_cast<uint32_t>(data.size());
  send.ready = ready;
  return send;
}

// A whole frame.
inline Bytes Frame(uint64_t sequence, const Bytes& payload, bool checksum = false) {
  FrameHeader header;
  header.flags = checksum ? kFrameChecksummed : 0;
  header.bytes = static_cast<uint32_t>(payload.size());
  header.payload_crc = checksum ? Crc32c(payload) : 0;
  header.sequence = sequence;
  header.tag = {{sequence, 1, 2, 3}};
  Bytes frame(kFrameHeaderBytes + payload.size());
  WriteFrameHeader(header, FrameBytes(frame.data(), kFrameHeaderBytes));
  std::copy(payload.begin(), payload.end(), frame.begin() + kFrameHeaderBytes);
  return frame;
}

// A TcpEndpoint as rank 0 and the raw peer.
class TcpPeerTest : public ::testing::Test {
 protected:
  void Open(int lanes, bool checksum = false) {
    TransportConfig config = TcpConfig(0, &reactor_);
    config.settings.Set("tcp_sockets", lanes);
    config.settings.Set("checksum", checksum);
    transport_ = CreateTcpTransport(config);
    std::string address;
    ASSERT_TRUE(transport_->LocalAddress(&address).ok());
    ConnectPlan plan;
    plan.hello = {.purpose = {kTcpTransport.hello_purpose, kTcpTransport.title},
                  .identity = {.job = kTcpJob},
                  .nranks = 2,
                  .rank = 1};
    plan.key = kTcpKey;
    plan.deadline = DeadlineAfter(kTcpPatience);
    for (int lane = 0; lane < lanes; ++lane) {
      plan.dials.push_back({{0, 0, static_cast<uint16_t>(lane)}, {EndpointOfBlob(address)}});
    }
    std::thread peer([&] { EXPECT_TRUE(EstablishStreams(&peer_reactor_, plan, &lanes_).ok()); });
    const LinkRequest link{.peer = 1, .channel = 0, .same_host = true, .address = "not used by the lower rank"};
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    const Status status = transport_->Connect({&link, 1}, TcpContext(), &endpoints);
    peer.join();
    ASSERT_TRUE(status.ok()) << status.ToString();
    endpoint_ = std::move(endpoints[0]);
    for (Stream& lane : lanes_) {
      asio::error_code error;
      lane.socket.non_blocking(false, error);
    }
  }

  void Say(int lane, const Bytes& bytes) {
    ASSERT_EQ(send(lanes_[lane].socket.native_handle(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Reads exactly `bytes`, or less when the stream ends; drives the endpoint meanwhile.
  Bytes Hear(int lane, size_t bytes) {
    Bytes heard(bytes);
    size_t got = 0;
    const Deadline deadline = DeadlineAfter(kTcpPatience);
    while (got < bytes && Now() < deadline) {
      Progress();
      const ssize_t now = recv(lanes_[lane].socket.native_handle(), heard.data() + got, bytes - got, MSG_DONTWAIT);
      if (now == 0 || (now < 0 && errno != EAGAIN)) break;
      if (now > 0) got += static_cast<size_t>(now);
    }
    heard.resize(got);
    return heard;
  }
  void Hang(int lane) {
    asio::error_code ignored;
    lanes_[lane].socket.close(ignored);
  }
  // Closes so that the other side gets a reset.
  void Reset(int lane) {
    const linger none{.l_onoff = 1, .l_linger = 0};
    setsockopt(lanes_[lane].socket.native_handle(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    Hang(lane);
  }

  void Progress() {
    bool moved = false;
    status_ = endpoint_->Progress(&moved);
  }
  template <class Condition>
  bool Until(Condition done) {
    const Deadline deadline = DeadlineAfter(kTcpPatience);
    while (!done()) {
      if (Now() > deadline) return false;
      Progress();
    }
    return true;
  }
  bool UntilFailed() {
    return Until([this] { return !status_.ok(); });
  }
  void Rounds() {
    for (int i = 0; i < 100; ++i) Progress();
  }

  Reactor reactor_;
  Reactor peer_reactor_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
  std::vector<Stream> lanes_;
  Status status_;
};

}  // namespace annulus
