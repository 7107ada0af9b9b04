// A stranger who connects to whatever ranks listen on, and means no good.
//
//   stray list PID...        prints what these processes listen on: "listening NUMBER"
//   stray KIND PORT PID...   once one of them listens on PORT, attacks every listening socket: "attacked NUMBER"
//   stray storm PORT PID...  attacks each listening socket that appears in several ways; "attacked NUMBER" at the end
//   stray flood PORT PID...  connects to all listening sockets as fast as it can until standard input ends: "flooding
//                            NUMBER" once there have been so many connections, "attacked NUMBER" at the end
//   stray relay PORT PID     stands between a rank and PORT of rank 0: "port OWN"; then "recorded HEX", what the rank
//                            said first: its hello, its proof and the beginning of its join
//
//   stray babble PORT PID... as flood, but each connection says something first: a byte, garbage, a hello, or a hello
//                            and half a proof
//
// KIND: close (at once), silent, drip (a byte at a time), garbage, giant (the largest length there is), crowd (a
// hundred silent ones), hello (a valid one, then nothing), half (a valid hello and half a proof, then nothing),
// replay=HEX (a recording). PORT is the rendezvous: there, giant plays a rank that holds the job
// key of the environment. All end, with their connections, when standard input ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/faults/listeners.h"
#include "transport/security/auth.h"
#include "transport/security/hello.h"
#include "transport/wire/frame.h"

namespace annulus {
namespace {

constexpr unsigned kLifeSeconds = 600;  // Whatever happens to the test.
constexpr int kCrowd = 100;
constexpr int kMostInAStorm = 300;
constexpr int kFlood = 2000;   // Connections to one door between two looks at what listens.
constexpr int kInFlood = 500;  // So many make it a flood.
constexpr int kPaceMs = 5;     // Between two bytes, looks and attacks: a nuisance, not a load test.
constexpr size_t kMostRecorded = 4096;

using Bytes = std::vector<unsigned char>;

void Say(const std::string& word, const std::string& value) {
  std::printf("%s %s\n", word.c_str(), value.c_str());
  std::fflush(stdout);
}

// Whether standard input has ended, after waiting for that up to `ms`.
bool InputEnded(int ms) {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, ms) == 1;
}

bool SendAll(int fd, const void* data, size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;  // Dropped, which is what we are here for.
    next += sent;
    bytes -= sent;
  }
  return true;
}

Bytes Garbage() {
  std::mt19937 random(7);
  Bytes bytes(4 * Handshake::kHelloBytes);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

// A well-formed header of a frame, but for its length; then zeros, up to a hello's length.
Bytes GiantFrame() {
  static_assert(kFrameHeaderBytes < Handshake::kHelloBytes);
  Bytes bytes(Handshake::kHelloBytes);
  FrameHeader header;
  header.bytes = std::numeric_limits<uint32_t>::max();
  WriteFrameHeader(header, std::as_writable_bytes(std::span(bytes)).first<kFrameHeaderBytes>());
  return bytes;
}

// As a rank of the job would: doors tell those who ask wrongly what they expect.
Bytes HelloFor(const Listener& listener) {
  Hello hello;
  hello.purpose = kRendezvousPurpose;
  hello.rank = 1;
  HelloBytes bytes = EncodeHello(hello, HandshakeRole::kInitiator, true, {});
  const int fd = ConnectTo(listener);
  if (fd >= 0) {
    const timeval limit{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    HelloBytes answer;
    PeerHello door;
    const bool answered = SendAll(fd, bytes.data(), bytes.size()) &&
                          recv(fd, answer.data(), answer.size(), MSG_WAITALL) == static_cast<ssize_t>(answer.size());
    if (answered && DecodeHelloPrefix(std::span(answer).first(kHelloPrefixBytes), &door.hello)) {
      DecodeHello(answer, &door);
      door.hello.target_rank = door.hello.rank;
      door.hello.rank = door.hello.rank == 0 ? 1 : 0;
      bytes = EncodeHello(door.hello, HandshakeRole::kInitiator, true, {});
    }
    close(fd);
  }
  const auto* first = reinterpret_cast<const unsigned char*>(bytes.data());
  return Bytes(first, first + bytes.size());
}

Bytes WithHalfAProof(Bytes hello) {
  hello.resize(hello.size() + Handshake::kMacBytes / 2, 7);
  return hello;
}

// As rank 1 does, with the key; then a control message of 4 GiB.
void JoinAsAGiant(int fd) {
  Hello hello;
  hello.purpose = kRendezvousPurpose;
  hello.nranks = std::numeric_limits<uint32_t>::max();
  hello.rank = 1;
  const char* key = std::getenv("ANNULUS_JOB_KEY");
  Handshake handshake(Handshake::Role::kInitiator, key == nullptr ? "" : key, hello);
  while (handshake.state() == Handshake::State::kRunning) {
    const auto output = handshake.Output();
    if (!output.empty()) {
      if (!SendAll(fd, output.data(), output.size())) return;
      handshake.Sent(output.size());
      continue;
    }
    std::array<std::byte, Handshake::kHelloBytes> in;
    const ssize_t got = recv(fd, in.data(), handshake.Wants(), 0);
    if (got <= 0 || !handshake.Feed(std::span(in).first(got)).ok()) return;
  }
  unsigned char verdict = 0;
  if (recv(fd, &verdict, 1, 0) != 1) return;
  const unsigned char message[] = {0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0};
  SendAll(fd, message, sizeof message);
}

Bytes FromHex(const std::string& text) {
  Bytes bytes;
  for (size_t i = 0; i + 2 <= text.size(); i += 2) {
    bytes.push_back(static_cast<unsigned char>(std::strtoul(text.substr(i, 2).c_str(), nullptr, 16)));
  }
  return bytes;
}

std::string ToHex(const Bytes& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

class Stray {
 public:
  Stray(int port, std::vector<pid_t> pids) : port_(port), pids_(std::move(pids)) {}

  // Returns false when the input ended before.
  bool AwaitRendezvous() const {
    const auto is_rendezvous = [this](const Listener& listener) { return listener.port == port_; };
    for (;;) {
      const std::vector<Listener> listeners = ListenersOf(pids_);
      if (std::any_of(listeners.begin(), listeners.end(), is_rendezvous)) return true;
      if (InputEnded(kPaceMs)) return false;
    }
  }

  void AttackAll(const std::string& kind) {
    for (const Listener& listener : ListenersOf(pids_)) Attack(kind, listener);
  }

  void Storm() {
    const std::vector<std::string> kinds = {"close", "silent", "garbage", "giant", "hello", "half"};
    std::set<Listener> seen;
    while (!InputEnded(kPaceMs)) {
      for (const Listener& listener : ListenersOf(pids_)) {
        if (seen.size() * kinds.size() > kMostInAStorm || !seen.insert(listener).second) continue;
        for (const std::string& kind : kinds) Attack(kind, listener);
      }
    }
  }

  // Holds some hundred connections at a time; the oldest make room. They are silent, or each says one of `words`.
  void Flood(bool speaks) {
    std::deque<int> held;
    while (!InputEnded(held.empty() ? kPaceMs : 0)) {
      for (const Listener& listener : ListenersOf(pids_)) {
        const std::vector<Bytes> words = speaks ? WordsFor(listener) : std::vector<Bytes>();
        for (int i = 0; i < kFlood; ++i) {
          const int fd = ConnectTo(listener);
          if (fd < 0) break;
          if (++attacked_ == kInFlood) Say("flooding", std::to_string(kInFlood));
          if (speaks) Send(fd, words[i % words.size()]);
          held.push_back(fd);
          if (held.size() <= kMostInAStorm) continue;
          close(held.front());
          held.pop_front();
        }
      }
    }
  }

  // Keeps the connections until the input ends; those that drip go on with it.
  void Hold() const {
    const Handshake handshake(Handshake::Role::kInitiator, "", {});
    const auto hello = handshake.Output();
    for (size_t i = 0; !InputEnded(dripping_.empty() ? -1 : kPaceMs); ++i) {
      for (const int fd : dripping_) SendAll(fd, &hello[i % hello.size()], i < kDrops ? 1 : 0);
    }
  }

  int attacked() const { return attacked_; }

 private:
  // Less than a hello, so that it stays a slow one.
  static constexpr size_t kDrops = Handshake::kHelloBytes - 1;

  void Attack(const std::string& kind, const Listener& listener) {
    const int times = kind == "crowd" ? kCrowd : 1;
    for (int i = 0; i < times; ++i) {
      const int fd = ConnectTo(listener);
      if (fd < 0) return;
      if (i == 0) ++attacked_;
      if (kind == "close") close(fd);
      if (kind == "drip") dripping_.push_back(fd);
      if (kind == "garbage") Send(fd, Garbage());
      if (kind == "hello") Send(fd, HelloFor(listener));
      if (kind == "half") Send(fd, WithHalfAProof(HelloFor(listener)));
      if (kind == "giant" && listener.port == port_) JoinAsAGiant(fd);
      if (kind == "giant" && listener.port != port_) Send(fd, GiantFrame());
      if (kind.rfind("replay=", 0) == 0) Send(fd, FromHex(kind.substr(7)));
    }
  }

  static std::vector<Bytes> WordsFor(const Listener& listener) {
    const Bytes hello = HelloFor(listener);
    return {{hello[0]}, Garbage(), hello, WithHalfAProof(hello)};
  }

  static void Send(int fd, const Bytes& bytes) { SendAll(fd, bytes.data(), bytes.size()); }

  const int port_;
  const std::vector<pid_t> pids_;
  std::vector<int> dripping_;
  int attacked_ = 0;
};

// Copies what `from` says to `to`. False when both have nothing more to say.
struct Pipe {
  int from;
  int to;
  bool open = true;

  // Returns what was copied.
  Bytes Copy() {
    Bytes bytes(kMostRecorded);
    const ssize_t got = recv(from, bytes.data(), bytes.size(), 0);
    bytes.resize(std::max<ssize_t>(got, 0));
    open = got > 0 && SendAll(to, bytes.data(), bytes.size());
    if (!open) shutdown(to, SHUT_WR);
    return bytes;
  }
};

void Relay(int port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof own;
  ANNULUS_CHECK(bind(listener, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0 && listen(listener, 1) == 0);
  ANNULUS_CHECK(getsockname(listener, reinterpret_cast<sockaddr*>(&own), &length) == 0);
  Say("port", std::to_string(ntohs(own.sin_port)));
  const int rank = accept(listener, nullptr, nullptr);
  const int rendezvous = ConnectTo({port, ""});
  ANNULUS_CHECK(rank >= 0 && rendezvous >= 0);
  Pipe up{rank, rendezvous};
  Pipe down{rendezvous, rank};
  Bytes recorded;
  bool told = false;
  while (up.open || down.open) {
    pollfd polls[] = {
        {up.open ? rank : -1, POLLIN, 0}, {down.open ? rendezvous : -1, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    poll(polls, 3, -1);
    if (polls[2].revents != 0) return;
    if (polls[0].revents != 0) {
      const Bytes bytes = up.Copy();
      recorded.insert(recorded.end(), bytes.begin(), bytes.end());
    }
    if (polls[1].revents != 0) down.Copy();
    if (told || recorded.size() <= Handshake::kHelloBytes + Handshake::kMacBytes) continue;
    told = true;
    Say("recorded", ToHex(recorded));
  }
}

int Run(const std::vector<std::string>& words) {
  ANNULUS_CHECK(words.size() >= 2);
  const std::string& kind = words[0];
  const bool lists = kind == "list";
  std::vector<pid_t> pids;
  for (size_t i = lists ? 1 : 2; i < words.size(); ++i) pids.push_back(std::atoi(words[i].c_str()));
  if (lists) {
    Say("listening", std::to_string(ListenersOf(pids).size()));
    return 0;
  }
  const int port = std::atoi(words[1].c_str());
  Stray stray(port, pids);
  const bool floods = kind == "flood" || kind == "babble";
  if (kind != "storm" && !floods && !stray.AwaitRendezvous()) {  // It came too late, on a busy machine.
    Say("attacked", "0");
    return 0;
  }
  if (kind == "relay") {
    Relay(port);
    return 0;
  }
  if (kind == "storm") {
    stray.Storm();
  } else if (floods) {
    stray.Flood(kind == "babble");
  } else {
    stray.AttackAll(kind);
  }
  Say("attacked", std::to_string(stray.attacked()));
  stray.Hold();
  return 0;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  alarm(annulus::kLifeSeconds);
  return annulus::Run({argv + 1, argv + argc});
}
