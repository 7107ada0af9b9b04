// One rank of a failure test: it works until something goes wrong, and says what it was told.
//
//   worker loop [bytes]         allreduce after allreduce
//   worker until                the same, until the standard input of rank 0 ends
//   worker timed                the same, and rank 0 says "slow BEGIN END" of each call that takes 10 ms and more
//   worker once FIELD           ten good calls, then the one that `differ` is to differ from
//   worker differ FIELD         ten good calls, then one that differs in FIELD: count, type, op, root, kind
//   worker dup                  ten good calls, then annulus_comm_dup
//   worker splits COLOUR        ten good calls, then 50 times annulus_comm_split
//   worker vanish               ten good calls, then is killed in the midst of annulus_comm_dup
//   worker idle                 ten good calls, then none, with the communicator open
//   worker leave                ten good calls, then destroys its communicator
//   worker last                 ten good calls, then a small broadcast from rank 0, says "the last call is done", and
//                               destroys its communicator
//   worker abort                ten good calls, then annulus_comm_abort
//   worker fork                 ten good calls, then forks a child that lives for a minute, and goes on
//   worker async                the same, four asynchronous ones at a time
//   worker garble               ten good calls, then writes rubbish into its TCP data sockets and goes on
//   worker cut                  ten good calls, then shuts down its TCP data sockets and goes on
//   worker hold                 ten good calls, then goes on while its GPU does nothing until somebody waits for it
//   worker stream               ten good calls, then calls in a stream of its GPU; says "launches" when a kernel has
//                               been part of one
//   worker gpu_fails            ten good calls, then goes on while its GPU refuses a copy
//
// With FAULT_AWAITS_INPUT it waits after the ten calls until its standard input ends; with FAULT_STAYS, before it
// destroys its communicator.
// With FAULT_DRIVER its buffers are device memory of the stand-in for CUDA's driver (worker_gpu.h).
//
// Output: "ready" after the ten calls; "the stream goes on", or "is stuck", at the end of `stream`; "forked" once
// `fork` has its child; "splits TIME" of the longest one, in ns; at the end of `until` and `timed` "reconnects COUNT
// BYTES", of connections that were made again and bytes sent again, by the counters of TCP; "verdict STATUS RANK TIME
// MESSAGE" on a failure; "wrong on GPU: WHAT" after destroy for each thing that was; then "ended TIME". Or "create
// STATUS MESSAGE" when there is no communicator. A wrong sum ends the process.

#include <annulus.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "tests/collectives/harness/calls.h"
#include "tests/faults/worker_gpu.h"

namespace {

constexpr int kGoodCalls = 10;
constexpr annulus::Nanoseconds kSlow = 10 * annulus::kMillisecond;
constexpr int kCopiesBeforeAFailure = 5;
constexpr int kSplits = 50;

struct Buffers {
  Buffers(size_t count, int rank, int nranks)
      : in(count, static_cast<float>(rank + 1)), out(count, 0), sum(static_cast<float>(nranks * (nranks + 1) / 2)) {}
  annulus::Floats in;
  annulus::Floats out;
  const float sum;  // Sum over all ranks' `in`.
};

annulus_status_t Good(annulus_comm_t* comm, Buffers* b) {
  const annulus_status_t status =
      annulus_allreduce(comm, b->in.data(), b->out.data(), b->in.size(), ANNULUS_FLOAT32, ANNULUS_SUM);
  if (status != ANNULUS_OK) return status;
  // The first element may carry a word from rank 0.
  const auto found = b->out.Read().subspan(1);
  ANNULUS_CHECK(std::all_of(found.begin(), found.end(), [b](float value) { return value == b->sum; }));
  return status;
}

void AwaitInputEnd() {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  while (poll(&input, 1, -1) != 1) {
  }
}

// Writes one line at once, so that the test sees it now.
void Say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

// Rank 0 adds one to the first element when its standard input has ended: everyone sees that in the same call.
annulus_status_t WorkUntilInputEnds(annulus_comm_t* comm, Buffers* b, int rank, bool says_slow) {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  for (;;) {
    if (rank == 0 && poll(&input, 1, 0) == 1) b->in.Write(0, b->in.Read()[0] + 1);
    const annulus::Nanoseconds begin = annulus::Now();
    const annulus_status_t status = Good(comm, b);
    const annulus::Nanoseconds end = annulus::Now();
    if (says_slow && rank == 0 && end - begin >= kSlow)
      Say("slow " + std::to_string(begin) + " " + std::to_string(end));
    if (status != ANNULUS_OK) return status;
    if (b->out.Read()[0] != b->sum) return ANNULUS_OK;
  }
}

void SayReconnects(annulus_comm_t* comm) {
  annulus_transport_counters_t counters{};
  counters.struct_bytes = sizeof counters;
  for (int i = 0; annulus_comm_transport_counters(comm, i, &counters) == ANNULUS_OK && *counters.transport != 0; ++i) {
    if (counters.transport != std::string("tcp")) continue;
    Say("reconnects " + std::to_string(counters.reconnects) + " " + std::to_string(counters.bytes_sent_again));
  }
}

annulus_status_t Differing(annulus_comm_t* comm, Buffers* b, const std::string& field, bool differ) {
  const size_t count = b->in.size() / 2 - (field == "count" && differ ? 5 : 0);
  const annulus_type_t type = field == "type" && differ ? ANNULUS_INT32 : ANNULUS_FLOAT32;
  const annulus_op_t op = field == "op" && differ ? ANNULUS_MAX : ANNULUS_SUM;
  if (field == "root") return annulus_broadcast(comm, b->in.data(), b->out.data(), count, type, differ ? 1 : 0);
  if (field == "kind" && differ) return annulus_reduce(comm, b->in.data(), b->out.data(), count, type, op, 0);
  return annulus_allreduce(comm, b->in.data(), b->out.data(), count, type, op);
}

// Calls `act` with every TCP connection that does not lead to or from the rendezvous.
template <class Act>
void ForEachDataSocket(Act act) {
  const std::string rendezvous = std::getenv("ANNULUS_RENDEZVOUS");
  const int port = std::atoi(rendezvous.substr(rendezvous.rfind(':') + 1).c_str());
  for (int fd = 3; fd < 256; ++fd) {
    sockaddr_in own{};
    sockaddr_in other{};
    socklen_t own_bytes = sizeof own;
    socklen_t other_bytes = sizeof other;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0 || own.sin_family != AF_INET) continue;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_bytes) != 0) continue;
    if (ntohs(own.sin_port) != port && ntohs(other.sin_port) != port) act(fd);
  }
}

void Garble(int fd) {
  const std::vector<char> rubbish(4096, '\xa5');
  ANNULUS_CHECK(send(fd, rubbish.data(), rubbish.size(), MSG_NOSIGNAL) > 0);
}

annulus_status_t GoodAsync(annulus_comm_t* comm, Buffers* b) {
  std::vector<Buffers> buffers(4, *b);
  std::vector<annulus_request_t*> requests(buffers.size(), nullptr);
  annulus_status_t status = ANNULUS_OK;
  for (size_t i = 0; i < buffers.size() && status == ANNULUS_OK; ++i) {
    Buffers& own = buffers[i];
    status = annulus_allreduce_async(comm, own.in.data(), own.out.data(), own.in.size(), ANNULUS_FLOAT32, ANNULUS_SUM,
                                     &requests[i]);
  }
  for (annulus_request_t* request : requests) {
    if (request == nullptr) continue;
    const annulus_status_t ended = annulus_request_wait(request, -1);
    if (status == ANNULUS_OK) status = ended;
    ANNULUS_CHECK(ended == status || ended == ANNULUS_OK);  // After the first failure there is no other one.
    annulus_request_free(request);
  }
  return status;
}

// Calls in a stream until one fails; says then whether the stream goes on.
annulus_status_t WorkInStream(annulus_comm_t* comm, Buffers* b) {
  if (annulus::WorkerGpu() == nullptr) {
    annulus_status_t status = ANNULUS_OK;
    while (status == ANNULUS_OK) status = Good(comm, b);
    return status;
  }
  annulus::WorkerStream stream;
  annulus_call_t call{};
  call.struct_bytes = sizeof call;
  call.kind = ANNULUS_CALL_ALLREDUCE;
  call.type = ANNULUS_FLOAT32;
  call.sendbuf = b->in.data();
  call.recvbuf = b->out.data();
  call.count = b->in.size();
  call.stream = stream.handle();
  call.stream_kind = ANNULUS_STREAM_CUDA;
  annulus_status_t status = ANNULUS_OK;
  const int64_t launches = annulus::WorkerGpu()->Counts().launches;
  bool has_launched = false;
  for (int i = 0; status == ANNULUS_OK; ++i) {
    if (!has_launched && annulus::WorkerGpu()->Counts().launches > launches) {
      has_launched = true;
      Say("launches");
    }
    annulus_request_t* request = nullptr;
    status = annulus_submit(comm, &call, 1, i % 4 == 0 ? &request : nullptr);
    if (request != nullptr && status == ANNULUS_OK) status = annulus_request_wait(request, -1);
    annulus_request_free(request);
  }
  Say(stream.Drains(10 * annulus::kSecond) ? "the stream goes on" : "the stream is stuck");
  return status;
}

annulus_status_t Duplicate(annulus_comm_t* comm) {
  annulus_comm_t* made = nullptr;
  const annulus_status_t status = annulus_comm_dup(comm, &made);
  if (status == ANNULUS_OK) annulus_comm_destroy(made);
  return status;
}

// Says what the split itself returned: its message need not be that of the parent's verdict.
annulus_status_t SplitOff(annulus_comm_t* comm, int colour) {
  annulus_comm_t* made = nullptr;
  const annulus_status_t status = annulus_comm_split(comm, colour, 0, &made);
  if (status == ANNULUS_OK) annulus_comm_destroy(made);
  const long long at = annulus::Now();
  Say("split " + std::to_string(status) + " " + std::to_string(at) + " " +
      (status == ANNULUS_OK ? "" : annulus::LastMessage()));
  return status;
}

// Says how long the longest one took, in ns.
annulus_status_t SplitOften(annulus_comm_t* comm, int colour) {
  annulus::Nanoseconds longest = 0;
  for (int i = 0; i < kSplits; ++i) {
    annulus_comm_t* made = nullptr;
    const annulus::Nanoseconds since = annulus::Now();
    const annulus_status_t status = annulus_comm_split(comm, colour, 0, &made);
    if (status != ANNULUS_OK) return status;
    longest = std::max(longest, annulus::Now() - since);
    annulus_comm_destroy(made);
  }
  Say("splits " + std::to_string(longest));
  return ANNULUS_OK;
}

// Agrees to what Split (collectives/comm/split.cc) exchanges, colours and addresses, and is gone when the ranks are to
// meet.
void VanishFromSplit(annulus_comm_t* comm, int colour) {
  std::vector<int32_t> own(16);
  own[0] = colour;
  std::vector<int32_t> all(16 * 64);
  for (size_t count : {2, 16}) {
    ANNULUS_CHECK(annulus_allgather(comm, own.data(), all.data(), count, ANNULUS_INT32) == ANNULUS_OK);
    std::memcpy(own.data(), "127.0.0.1:1", 12);  // Nobody listens there.
  }
  Say("vanishing");
  raise(SIGKILL);
}

annulus_status_t LastCall(annulus_comm_t* comm, Buffers* b) {
  constexpr size_t kCount = 1000;
  const annulus_status_t status = annulus_broadcast(comm, b->in.data(), b->out.data(), kCount, ANNULUS_FLOAT32, 0);
  if (status != ANNULUS_OK) return status;
  const auto found = b->out.Read().first(kCount);
  ANNULUS_CHECK(std::all_of(found.begin(), found.end(), [](float value) { return value == 1; }));
  Say("the last call is done");
  return status;
}

// Like a process that loads data: it lives on when its parent is killed.
void ForkAChild() {
  if (fork() != 0) return Say("forked");
  close(STDOUT_FILENO);  // The test reads until nobody can write.
  close(STDERR_FILENO);
  alarm(60);
  for (;;) pause();
}

annulus_status_t Act(annulus_comm_t* comm, Buffers* buffers, int rank, const std::string& mode,
                     const std::string& field) {
  annulus_status_t status = ANNULUS_OK;
  if (mode == "until" || mode == "timed") {
    status = WorkUntilInputEnds(comm, buffers, rank, mode == "timed");
    SayReconnects(comm);
    return status;
  }
  if (mode == "fork") ForkAChild();
  if (mode == "cut") ForEachDataSocket([](int fd) { shutdown(fd, SHUT_RDWR); });
  if (mode == "garble") ForEachDataSocket(Garble);
  if (mode == "stream") return WorkInStream(comm, buffers);
  while (mode == "async" && status == ANNULUS_OK) status = GoodAsync(comm, buffers);
  if (mode == "abort") annulus_comm_abort(comm, nullptr);
  if (mode == "dup") status = Duplicate(comm);
  if (mode == "split") status = SplitOff(comm, std::atoi(field.c_str()));
  if (mode == "splits") return SplitOften(comm, std::atoi(field.c_str()));
  if (mode == "vanish") VanishFromSplit(comm, std::atoi(field.c_str()));
  if (mode == "leave") return ANNULUS_OK;
  if (mode == "last") return LastCall(comm, buffers);
  if (mode == "idle") {
    for (;;) pause();  // Until the test kills us.
  }
  if (mode == "gpu_fails")
    annulus::WorkerGpu()->Fail("cuMemcpyAsync", annulus::cuda::Result::kLaunchFailed, kCopiesBeforeAFailure);
  if (mode == "once") status = Differing(comm, buffers, field, false);
  if (mode == "differ") status = Differing(comm, buffers, field, true);
  while (status == ANNULUS_OK) status = Good(comm, buffers);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "loop";
  const std::string field = argc > 2 ? argv[2] : "";
  annulus::WorkerGpu();
  annulus_comm_t* comm = nullptr;
  const annulus_status_t created = annulus_comm_create(nullptr, &comm);
  if (created != ANNULUS_OK) {
    Say("create " + std::to_string(created) + " " + annulus::LastMessage());
    return 1;
  }
  int rank = 0;
  int nranks = 0;
  annulus_comm_rank(comm, &rank);
  annulus_comm_size(comm, &nranks);
  const bool sized = mode == "loop" && !field.empty();
  Buffers buffers(sized ? std::strtoul(field.c_str(), nullptr, 10) / sizeof(float) : 100000, rank, nranks);
  annulus_status_t status = ANNULUS_OK;
  for (int i = 0; i < kGoodCalls && status == ANNULUS_OK; ++i) status = Good(comm, &buffers);
  std::optional<annulus::HeldGpu> held;
  if (status == ANNULUS_OK) {
    Say("ready");
    if (std::getenv("FAULT_AWAITS_INPUT") != nullptr) AwaitInputEnd();
    if (mode == "hold") held.emplace();
    status = Act(comm, &buffers, rank, mode, field);
  }
  const long long at = annulus::Now();
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  annulus_comm_verdict(comm, &error);
  if (status != ANNULUS_OK) {
    Say("verdict " + std::to_string(status) + " " + std::to_string(error.rank) + " " + std::to_string(at) + " " +
        error.message);
  }
  if (status != ANNULUS_OK && (error.status != status || Good(comm, &buffers) != status))
    Say("not refused with the verdict");
  buffers.in.Read();  // They are the worker's own again.
  buffers.out.Read();
  if (std::getenv("FAULT_STAYS") != nullptr) AwaitInputEnd();
  annulus_comm_destroy(comm);
  for (const std::string& wrong : annulus::WrongOnGpu()) Say("wrong on GPU: " + wrong);
  Say("ended " + std::to_string(annulus::Now()));
  return 0;
}
