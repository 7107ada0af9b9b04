// A parameter server: rank 0 receives from all others at once, sums, and sends back; an element goes back as soon as
// the last one has delivered it, so that both directions of rank 0's link work at the same time.
//
// What such a design can do at best, in little code: one connection per rank, non-blocking sockets, one thread. The
// last three words of the command line are for this driver: RANK SIZE ADDRESS, of rank 0.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "bench/peers/peer_bench.h"

namespace annulus {
namespace {

constexpr int kOwnWords = 3;
constexpr uint16_t kPort = 29600;
constexpr Nanoseconds kJoinTime = 30 * kSecond;
constexpr int kPollMs = 600'000;
constexpr size_t kReceiveBytes = 256 * 1024;  // At a time; stays in the cache until it is added.

void Need(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "parameter server: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

// One connection during one call.
struct Client {
  int socket = -1;
  size_t received = 0;  // Bytes.
  size_t sent = 0;
};

// What is set by PeerStart.
struct Job {
  int rank = 0;
  std::vector<Client> clients;  // On rank 0, all others; on the others, rank 0.
  std::vector<std::byte> buffer = std::vector<std::byte>(kReceiveBytes);
};

Job& TheJob() {
  static Job job;
  return job;
}

// recv and send as much as is possible now; 0 when nothing is.
size_t ReceiveSome(int socket, void* to, size_t bytes) {
  const ssize_t done = recv(socket, to, bytes, 0);
  Need(done > 0 || (done < 0 && errno == EAGAIN), "receive");
  return done > 0 ? static_cast<size_t>(done) : 0;
}

size_t SendSome(int socket, const void* from, size_t bytes) {
  const ssize_t done = send(socket, from, bytes, MSG_NOSIGNAL);
  Need(done > 0 || (done < 0 && errno == EAGAIN), "send");
  return done > 0 ? static_cast<size_t>(done) : 0;
}

// Waits until a client can go on: has sent something that is missing, or takes what `sendable` bytes hold for it.
void AwaitAny(const std::vector<Client>& clients, size_t receivable, size_t sendable) {
  static std::vector<pollfd> polled;
  polled.clear();
  for (const Client& client : clients) {
    const int wanted = (client.received < receivable ? POLLIN : 0) | (client.sent < sendable ? POLLOUT : 0);
    if (wanted != 0) polled.push_back({client.socket, static_cast<int16_t>(wanted), 0});
  }
  Need(poll(polled.data(), polled.size(), kPollMs) > 0, "wait");
}

// Adds what arrived. Elements may arrive in pieces: the odd bytes of a piece wait in the socket.
bool AddArrival(Client* client, float* sum, size_t bytes) {
  std::vector<std::byte>& buffer = TheJob().buffer;
  const size_t wanted = std::min(buffer.size(), bytes - client->received);
  const ssize_t there = recv(client->socket, buffer.data(), wanted, MSG_PEEK);
  Need(there > 0 || (there < 0 && errno == EAGAIN), "receive");
  if (there < static_cast<ssize_t>(sizeof(float))) return false;
  const size_t count = static_cast<size_t>(there) / sizeof(float);
  Need(ReceiveSome(client->socket, buffer.data(), count * sizeof(float)) == count * sizeof(float), "receive");
  float* const to = sum + client->received / sizeof(float);
  for (size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, buffer.data() + i * sizeof(float), sizeof(value));
    to[i] += value;
  }
  client->received += count * sizeof(float);
  return true;
}

void Serve(std::vector<Client>& clients, float* sum, size_t bytes) {
  const auto least = [&clients](size_t Client::*member) {
    return (*std::min_element(clients.begin(), clients.end(),
                              [member](const Client& a, const Client& b) { return a.*member < b.*member; })).*
           member;
  };
  for (size_t summed = 0; least(&Client::sent) < bytes; summed = least(&Client::received)) {
    AwaitAny(clients, bytes, summed);
    for (Client& client : clients) {
      if (client.received < bytes) AddArrival(&client, sum, bytes);
      if (client.sent < summed) {
        client.sent += SendSome(client.socket, reinterpret_cast<char*>(sum) + client.sent, summed - client.sent);
      }
    }
  }
}

void Ask(Client& server, const float* send, float* recv, size_t bytes) {
  while (server.received < bytes) {
    std::vector<Client> one = {server};
    AwaitAny(one, bytes, bytes);
    if (server.sent < bytes) {
      server.sent += SendSome(server.socket, reinterpret_cast<const char*>(send) + server.sent, bytes - server.sent);
    }
    server.received +=
        ReceiveSome(server.socket, reinterpret_cast<char*>(recv) + server.received, bytes - server.received);
  }
}

void Adopt(int socket) {
  const int on = 1;
  Need(setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0, "no delay");
  Need(fcntl(socket, F_SETFL, O_NONBLOCK) == 0, "non-blocking");
  TheJob().clients.push_back({socket, 0, 0});
}

void Listen(const sockaddr_in& address, int clients) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  Need(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0, "socket");
  Need(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, "bind");
  Need(listen(listener, clients) == 0, "listen");
  for (int i = 0; i < clients; ++i) {
    const int client = accept(listener, nullptr, nullptr);
    Need(client >= 0, "accept");
    Adopt(client);
  }
  close(listener);
}

// The server may not listen yet.
void Connect(const sockaddr_in& address) {
  for (const Deadline deadline = DeadlineAfter(kJoinTime);;) {
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    Need(server >= 0, "socket");
    if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return Adopt(server);
    Need(errno == ECONNREFUSED && Now() < deadline, "connect");
    close(server);
    poll(nullptr, 0, 1);
  }
}

}  // namespace
}  // namespace annulus

void PeerStart(int* argc, char*** argv, int* rank, int* size) {
  if (*argc <= annulus::kOwnWords) {
    std::fprintf(stderr, "usage: %s ... RANK SIZE ADDRESS\n", **argv);
    std::exit(2);
  }
  *argc -= annulus::kOwnWords;
  char** const words = *argv + *argc;
  *rank = annulus::TheJob().rank = std::atoi(words[0]);
  *size = std::atoi(words[1]);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(annulus::kPort);
  annulus::Need(inet_pton(AF_INET, words[2], &address.sin_addr) == 1, "address");
  if (*rank == 0) annulus::Listen(address, *size - 1);
  if (*rank != 0) annulus::Connect(address);
}

void PeerAllreduce(const float* send, float* recv, size_t count) {
  annulus::Job& job = annulus::TheJob();
  for (annulus::Client& client : job.clients) client.received = client.sent = 0;
  if (job.rank != 0) return annulus::Ask(job.clients[0], send, recv, count * sizeof(float));
  if (send != recv) std::copy(send, send + count, recv);
  if (!job.clients.empty()) annulus::Serve(job.clients, recv, count * sizeof(float));
}

void PeerStop(void) {
  for (const annulus::Client& client : annulus::TheJob().clients) close(client.socket);
}
