// The plain exchange over sockets.
//
// Threads: see perf_limit_socket.h.
#include "bench/perf/limit/perf_limit_socket.h"

#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "bench/perf/limit/perf_socket_pair.h"

namespace annulus::perf {
namespace {

// The write size at which a loopback socket carries most on the machines that were measured.
constexpr size_t kWriteBytes = size_t{1} << 20;
constexpr Nanoseconds kPatience = 20 * kSecond;
constexpr int kIdleTurns = 50;  // Fruitless turns before the core is offered to other ranks.

bool MayRetry(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Status SocketProbe::Create(Group& group, const annulus_config_t& config, const std::vector<bool>& edges, Arena arena,
                           std::unique_ptr<Probe>* probe, std::string* why_not) {
  std::unique_ptr<SocketProbe> created(new SocketProbe(arena));
  const size_t rank = static_cast<size_t>(group.rank());
  const size_t nranks = static_cast<size_t>(group.size());
  Neighbours links{edges[rank], edges[(rank + nranks - 1) % nranks], -1, -1};
  Status connected;
  ANNULUS_RETURN_IF_ERROR(ConnectNeighbours(group, config, &links, &connected));
  created->to_next_ = links.to_next;
  created->from_prev_ = links.from_prev;
  created->opens_chain_ = rank == 0;
  created->closes_chain_ = rank == nranks - 1;
  created->answers_ = rank % 2 != 0;
  created->mixed_ = std::find(edges.begin(), edges.end(), false) != edges.end();
  double usable = connected.ok() ? 1 : 0;
  ANNULUS_RETURN_IF_ERROR(group.Min({&usable, 1}));
  *why_not = connected.ok() ? "a rank could not set up plain sockets" : connected.message();
  if (usable == 1) *probe = std::move(created);
  return Status();
}

SocketProbe::~SocketProbe() {
  for (const int socket : {to_next_, from_prev_}) {
    if (socket >= 0) close(socket);
  }
}

size_t SocketProbe::PassBytes(Kind kind, size_t bytes, int nranks) const {
  // When hosts have several ranks, an alltoall has more to take from host to host than a ring, and pairs of ranks may
  // all lie within hosts.
  if ((kind == Kind::kAlltoall || kind == Kind::kPingpong) && mixed_) return 0;
  return static_cast<size_t>(static_cast<double>(bytes) * BusFactor(kind, nranks));
}

Status SocketProbe::SendSome(Way out, size_t* sent, bool* moved) const {
  if (*sent == out.bytes) return Status();
  const size_t at = *sent % arena_.bytes;
  const size_t bytes = std::min({kWriteBytes, out.bytes - *sent, arena_.bytes - at});
  const ssize_t done = send(out.socket, arena_.input + at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (done < 0) return MayRetry(errno) ? Status() : Status::System("limit probe: send", errno);
  *sent += static_cast<size_t>(done);
  *moved = true;
  return Status();
}

Status SocketProbe::ReceiveSome(Way in, size_t* received, bool* moved) const {
  if (*received == in.bytes) return Status();
  const size_t at = *received % arena_.bytes;
  const size_t bytes = std::min({kWriteBytes, in.bytes - *received, arena_.bytes - at});
  const ssize_t done = recv(in.socket, arena_.output + at, bytes, MSG_DONTWAIT);
  if (done == 0) return {Code::kPeerLost, "limit probe: a neighbour closed its socket"};
  if (done < 0) return MayRetry(errno) ? Status() : Status::System("limit probe: recv", errno);
  *received += static_cast<size_t>(done);
  *moved = true;
  return Status();
}

Status SocketProbe::Exchange(Way out, Way in) const {
  size_t sent = 0, received = 0;
  Deadline deadline = DeadlineAfter(kPatience);  // From the last byte that moved.
  for (int idle = 0; sent < out.bytes || received < in.bytes;) {
    bool moved = false;
    ANNULUS_RETURN_IF_ERROR(SendSome(out, &sent, &moved));
    ANNULUS_RETURN_IF_ERROR(ReceiveSome(in, &received, &moved));
    idle = moved ? 0 : idle + 1;
    if (idle < kIdleTurns) continue;
    if (idle == kIdleTurns) deadline = DeadlineAfter(kPatience);
    sched_yield();
    if (Now() > deadline) return {Code::kTimeout, "limit probe: a neighbour stopped sending or receiving"};
  }
  return Status();
}

Status SocketProbe::Pass(Kind kind, size_t pass_bytes, int) {
  const Pattern pattern = PatternOf(kind);
  if (pattern == Pattern::kPingpong) {
    if (closes_chain_ && !answers_) return Status();  // The last of an odd number has no partner.
    const Way way{answers_ ? from_prev_ : to_next_, pass_bytes};
    const Way none{-1, 0};
    ANNULUS_RETURN_IF_ERROR(answers_ ? Exchange(none, way) : Exchange(way, none));
    return answers_ ? Exchange(way, none) : Exchange(none, way);
  }
  const bool chain = pattern == Pattern::kChain;
  const size_t to_send = to_next_ < 0 || (chain && closes_chain_) ? 0 : pass_bytes;
  const size_t to_receive = from_prev_ < 0 || (chain && opens_chain_) ? 0 : pass_bytes;
  return Exchange({to_next_, to_send}, {from_prev_, to_receive});
}

std::string SocketProbe::Description() const {
  return "TCP: every rank sends to the next what the ring sends and receives as much from the previous one, both at "
         "once, one plain socket per link, nothing reduced";
}

}  // namespace annulus::perf
