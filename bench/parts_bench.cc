// parts_bench: what the transports' parts cost alone.
//
//   frame/...                       writing and parsing a frame's header, without and with its payload's checksum
//   post and complete/BACKEND/SIZE  a slice from one end of a link to the other, both driven by this thread: the calls'
//                                   own cost, no waiting
//   hand-over/BACKEND/SIZE          to another thread and back, the data copied into a slot and out of it on both
//                                   sides: one_way is half of it
//   counters                        what an allreduce of 8 bytes between two ranks counts
//
// Threads: the hand-over has a second one, which answers.
#include <benchmark/benchmark.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/endpoint_pair.h"
#include "collectives/observe/monitor.h"
#include "transport/select/select.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/frame.h"

namespace annulus::perf {
namespace {

constexpr size_t kSlotBytes = 256 << 10;
constexpr int kSpins = 1000;  // Fruitless turns before the core is offered to the other thread.

FrameHeader SampleHeader() {
  FrameHeader header;
  header.bytes = 1 << 16;
  header.sequence = 12345;
  header.tag.words = {1, 2, 3, 4};
  return header;
}

void WriteFrame(benchmark::State& state) {
  FrameHeader header = SampleHeader();
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  for (auto _ : state) {
    ++header.sequence;
    WriteFrameHeader(header, bytes);
    benchmark::ClobberMemory();
  }
}

void ParseFrame(benchmark::State& state) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  WriteFrameHeader(SampleHeader(), bytes);
  FrameHeader header;
  for (auto _ : state) {
    benchmark::DoNotOptimize(bytes.data());
    if (!ParseFrameHeader(bytes, &header).ok()) return state.SkipWithError("the frame is refused");
    benchmark::DoNotOptimize(header);
  }
}

void PayloadChecksum(benchmark::State& state) {
  const std::vector<std::byte> payload(static_cast<size_t>(state.range(0)), std::byte{0x5a});
  for (auto _ : state) benchmark::DoNotOptimize(Crc32c(payload));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * payload.size()));
}

// One end of a link at work. Ends the link when it goes, for a request may still be lent to it.
class Side {
 public:
  explicit Side(Endpoint& endpoint) : endpoint_(endpoint) {}
  ~Side() {
    while (!endpoint_.Close()) sched_yield();
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  // Where the data goes is decided here, as the engine does: a slot, so that all backends do the same.
  Status Post(const std::byte* from, uint32_t bytes) {
    std::byte* slot = nullptr;
    Status status;
    while ((status = endpoint_.AcquireSlot(Endpoint::kWholeSlot, &slot)).would_block()) ANNULUS_RETURN_IF_ERROR(Turn());
    ANNULUS_RETURN_IF_ERROR(status);
    if (from != nullptr) std::memcpy(slot, from, bytes);
    send_ = Send();
    send_.data = slot;
    send_.bytes = send_.ready = bytes;
    while ((status = endpoint_.PostSend(&send_)).would_block()) ANNULUS_RETURN_IF_ERROR(Turn());
    return status;
  }

  Status Expect() {
    recv_ = Recv();
    recv_.capacity = kSlotBytes;
    return endpoint_.PostRecv(&recv_);
  }

  bool received() const { return recv_.code != Code::kInProgress; }
  uint32_t received_bytes() const { return recv_.bytes; }
  bool sent() const { return send_.code != Code::kInProgress; }

  // Gives the slot back that the slice came in.
  void Finish(std::byte* to) {
    if (to != nullptr) std::memcpy(to, recv_.data, recv_.bytes);
    endpoint_.Release(&recv_);
  }

  Status Turn() {
    bool moved = false;
    const Status status = endpoint_.Progress(&moved);
    idle_ = moved ? 0 : idle_ + 1;
    if (idle_ > kSpins) sched_yield();
    return status;
  }

 private:
  Endpoint& endpoint_;
  Send send_;
  Recv recv_;
  int idle_ = 0;
};

std::unique_ptr<EndpointPair> OpenOrSkip(benchmark::State& state, const std::string& backend) {
  std::unique_ptr<EndpointPair> pair;
  const Status status = EndpointPair::Open(backend, kSlotBytes, &pair);
  if (!status.ok()) state.SkipWithError(status.message().c_str());
  return pair;
}

void PostAndComplete(benchmark::State& state, const std::string& backend) {
  const auto pair = OpenOrSkip(state, backend);
  if (!pair) return;
  Side from(pair->end(0)), to(pair->end(1));
  const uint32_t bytes = static_cast<uint32_t>(state.range(0));
  for (auto _ : state) {
    Status status = to.Expect();
    if (status.ok()) status = from.Post(nullptr, bytes);
    while (status.ok() && !to.received()) {
      status = from.Turn();
      if (status.ok()) status = to.Turn();
    }
    if (status.ok()) to.Finish(nullptr);
    while (status.ok() && !from.sent()) {
      status = to.Turn();
      if (status.ok()) status = from.Turn();
    }
    if (!status.ok()) return state.SkipWithError(status.message().c_str());
  }
}

// Sends back what comes, until told to stop.
Status Answer(Endpoint& endpoint, const std::atomic<bool>& stop) {
  Side side(endpoint);
  std::vector<std::byte> data(kSlotBytes);
  uint32_t bytes = 0;
  while (true) {
    ANNULUS_RETURN_IF_ERROR(side.Expect());
    while (!side.received()) {
      if (stop.load(std::memory_order_relaxed)) return Status();
      ANNULUS_RETURN_IF_ERROR(side.Turn());
    }
    bytes = side.received_bytes();
    side.Finish(data.data());
    ANNULUS_RETURN_IF_ERROR(side.Post(data.data(), bytes));
    while (!side.sent() && !stop.load(std::memory_order_relaxed)) ANNULUS_RETURN_IF_ERROR(side.Turn());
  }
}

Status RoundTrip(Side& side, std::vector<std::byte>& data) {
  ANNULUS_RETURN_IF_ERROR(side.Expect());
  ANNULUS_RETURN_IF_ERROR(side.Post(data.data(), static_cast<uint32_t>(data.size())));
  while (!side.received() || !side.sent()) ANNULUS_RETURN_IF_ERROR(side.Turn());
  side.Finish(data.data());
  return Status();
}

void HandOver(benchmark::State& state, const std::string& backend) {
  const auto pair = OpenOrSkip(state, backend);
  if (!pair) return;
  std::atomic<bool> stop{false};
  std::thread answering([&] { static_cast<void>(Answer(pair->end(1), stop)); });  // Its failure is the other end's too.
  Side side(pair->end(0));
  std::vector<std::byte> data(static_cast<size_t>(state.range(0)), std::byte{1});
  Status status;
  for (auto _ : state) {
    status = RoundTrip(side, data);
    if (!status.ok()) break;
  }
  stop = true;
  answering.join();
  if (!status.ok()) return state.SkipWithError(status.message().c_str());
  const double ways = 2 * static_cast<double>(state.iterations());
  state.counters["one_way"] = benchmark::Counter(ways, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.SetBytesProcessed(static_cast<int64_t>(ways) * state.range(0));
}

// Whether this machine has what `backend` needs. If not, says why.
bool WorksHere(const std::string& backend) {
  std::unique_ptr<EndpointPair> pair;
  const Status status = EndpointPair::Open(backend, kSlotBytes, &pair);
  if (status.code() != Code::kUnsupported) return true;
  std::fprintf(stderr, "%s is left out: %s\n", backend.c_str(), status.message().c_str());
  return false;
}

// What Driver::Repeat, ShortHop and CallQueue count for one call.
void CountSmallCall(benchmark::State& state) {
  Monitor monitor(2);
  Call call;
  for (auto _ : state) {
    monitor.Sent(1, 8);
    monitor.Received(1, 8);
    monitor.CountDrive(call, 190);
    monitor.CountEnd(false, true, 8);
    benchmark::ClobberMemory();
  }
}

void RegisterAll() {
  benchmark::RegisterBenchmark("counters", CountSmallCall);
  benchmark::RegisterBenchmark("frame/write", WriteFrame);
  benchmark::RegisterBenchmark("frame/parse", ParseFrame);
  benchmark::RegisterBenchmark("frame/checksum", PayloadChecksum)->Arg(64)->Arg(kSlotBytes);
  for (const TransportInfo* transport : Transports()) {
    const std::string backend = transport->name;
    if (!WorksHere(backend)) continue;
    benchmark::RegisterBenchmark(("post and complete/" + backend).c_str(), PostAndComplete, backend)
        ->Arg(64)
        ->Arg(64 << 10)
        ->UseRealTime();
    benchmark::RegisterBenchmark(("hand-over/" + backend).c_str(), HandOver, backend)
        ->Arg(64)
        ->Arg(4 << 10)
        ->Arg(64 << 10)
        ->Arg(kSlotBytes)
        ->UseRealTime();
  }
}

}  // namespace
}  // namespace annulus::perf

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  annulus::perf::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
