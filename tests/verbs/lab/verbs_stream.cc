// Streams slices over one verbs link of a real device, both ways at once, and reflects small ones: what the transport
// itself moves, beside ib_write_bw and ib_write_lat in the same guest. Nothing is reduced, filled or checked.
//
//   verbs_stream HOW BYTES [SLOTS]   slices of so many bytes: `slots`, from slots to slots; `written`, from registered
//                                    memory to slots; `read`, from registered memory to such, by READs
//   verbs_stream reflect BYTES       one slice there and back at a time
//
// SLOTS: that many slots each way, of the size of a slice, in place of 8 of 256 KiB. ANNULUS_LOG=info: each end tells
// what passed.
//
// Threads: one for each end.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "tests/transport/contract/contract_link.h"
#include "transport/memory/memory.h"
#include "transport/reactor.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"

namespace annulus {
namespace {

constexpr size_t kSlotBytes = 256 * 1024;
constexpr int kSlots = 8;
constexpr uint64_t kStreamBytes = 16 << 20;  // In each direction.
constexpr uint64_t kReflections = 1000;
constexpr Nanoseconds kSpin = 50 * kMicrosecond;
constexpr Nanoseconds kLongestSleep = 10 * kMillisecond;  // The other end may be done.

enum class How { kSlots, kWritten, kRead };

struct Pattern {
  uint32_t bytes = 0;
  uint64_t slices = 0;  // In each direction.
  int window = 1;       // Sends and receives under way.
  How how = How::kSlots;
  bool reflects = false;  // Rank 1 sends a slice once it has received one, and rank 0 the next one then.
};

class End {
 public:
  End(Endpoint* endpoint, Reactor* reactor, const Pattern& pattern, bool begins)
      : endpoint_(endpoint),
        reactor_(reactor),
        pattern_(pattern),
        begins_(begins),
        sends_(static_cast<size_t>(pattern.window)),
        recvs_(static_cast<size_t>(pattern.window)) {
    void* memory = nullptr;
    if (pattern.how != How::kSlots && TestRegistry().Allocate(2 * Half(), &memory).ok()) {
      memory_ = static_cast<std::byte*>(memory);
    }
  }
  ~End() {
    if (memory_ != nullptr) (void)TestRegistry().Free(memory_);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  // Moves what can be moved. Returns false once the link has failed.
  bool Step() {
    bool moved = false;
    if (!endpoint_->Progress(&moved).ok() || !Receive(&moved) || !Post(&moved)) return false;
    if (moved) {
      idle_since_ = 0;
    } else {
      Wait();
    }
    return true;
  }
  // Half of the median time from one slice to the next, in microseconds.
  double MedianUs() const {
    std::vector<Nanoseconds> gaps;
    for (size_t i = 1; i < times_.size(); ++i) gaps.push_back(times_[i] - times_[i - 1]);
    std::ranges::sort(gaps);
    return gaps.empty() ? 0 : static_cast<double>(gaps[gaps.size() / 2]) / 2 / kMicrosecond;
  }
  // When the first window had come, and all memory was registered.
  Nanoseconds began() const { return measured_.began; }
  // MiB/s that it sent from then on until its last send was done: what each end of ib_write_bw counts.
  double Rate() const {
    const double seconds = static_cast<double>(measured_.all_sent - measured_.began) / kSecond;
    return static_cast<double>(pattern_.slices - measured_.sent_before) * pattern_.bytes / (1 << 20) / seconds;
  }
  bool done() const { return sent_ == pattern_.slices && received_ == pattern_.slices; }

 private:
  struct Measured {
    Nanoseconds began = 0;     // As began().
    uint64_t sent_before = 0;  // Sends that were done then.
    Nanoseconds all_sent = 0;  // When the last send was done.
  };

  // As ranks wait: soft-RoCE needs the processor that a rank which polls takes from it.
  void Wait() {
    if (idle_since_ == 0) idle_since_ = Now();
    if (pattern_.reflects || Now() - idle_since_ < kSpin) {
      sched_yield();
    } else if (endpoint_->Arm()) {
      reactor_->WaitUntil(DeadlineAfter(kLongestSleep));
    }
  }

  size_t Half() const { return sends_.size() * pattern_.bytes; }

  bool Receive(bool* moved) {
    while (received_ < expected_) {
      Recv& recv = recvs_[received_ % recvs_.size()];
      if (recv.code == Code::kInProgress) break;
      if (recv.code != Code::kOk) return false;
      if (recv.data != recv.landing) endpoint_->Release(&recv);
      if (++received_ == recvs_.size()) {
        measured_.began = Now();
        measured_.sent_before = sent_;
      }
      if (pattern_.reflects) times_.push_back(Now());
      *moved = true;
    }
    while (expected_ < pattern_.slices && expected_ < received_ + recvs_.size()) {
      Recv& recv = recvs_[expected_ % recvs_.size()];
      recv = Recv();
      recv.capacity = pattern_.bytes;
      if (pattern_.how == How::kRead) recv.landing = memory_ + Half() + expected_ % recvs_.size() * pattern_.bytes;
      if (!endpoint_->PostRecv(&recv).ok()) break;
      ++expected_;
      *moved = true;
    }
    return true;
  }

  bool Post(bool* moved) {
    while (sent_ < posted_ && sends_[sent_ % sends_.size()].code != Code::kInProgress) {
      if (sends_[sent_++ % sends_.size()].code != Code::kOk) return false;
      if (sent_ == pattern_.slices) measured_.all_sent = Now();
      *moved = true;
    }
    const uint64_t most = pattern_.reflects ? received_ + (begins_ ? 1 : 0) : pattern_.slices;
    while (posted_ < std::min(most, pattern_.slices) && posted_ < sent_ + sends_.size()) {
      Send& send = sends_[posted_ % sends_.size()];
      send = Send();
      std::byte* slot = nullptr;
      if (memory_ == nullptr && !endpoint_->AcquireSlot(Endpoint::kWholeSlot, &slot).ok()) break;
      send.data = memory_ == nullptr ? slot : memory_ + posted_ % sends_.size() * pattern_.bytes;
      send.bytes = send.ready = pattern_.bytes;
      if (!endpoint_->PostSend(&send).ok()) return false;
      ++posted_;
      *moved = true;
    }
    return true;
  }

  Endpoint* const endpoint_;
  Reactor* const reactor_;
  const Pattern pattern_;
  const bool begins_;
  std::byte* memory_ = nullptr;  // Memory of the sends, then of the receives; null: slots.
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  uint64_t posted_ = 0;
  uint64_t sent_ = 0;
  uint64_t expected_ = 0;
  uint64_t received_ = 0;
  Measured measured_;
  Nanoseconds idle_since_ = 0;      // 0: something has moved.
  std::vector<Nanoseconds> times_;  // When slices came that are reflected.
};

struct Result {
  double rate = 0;     // MiB/s in both directions together without the first slices; or half of the way there and back
                       // in microseconds. 0: the link has failed.
  double of_ends = 0;  // Sum of the ends' own rates, in MiB/s, each until that end is done.
};

Result Run(ContractLink* link, const Pattern& pattern) {
  End first(&link->end(0), link->reactor(0), pattern, true);
  End second(&link->end(1), link->reactor(1), pattern, false);
  std::atomic<int> done = 0;
  std::atomic<bool> fails = false;
  // Each goes on until both are done: the other may need its credits.
  const auto drive = [&](End* end) {
    for (bool counted = false; done < 2 && !fails;) {
      if (!end->Step()) fails = true;
      if (!counted && end->done()) {
        counted = true;
        ++done;
      }
    }
  };
  std::thread other(drive, &second);
  drive(&first);
  other.join();
  if (fails) return {};
  if (pattern.reflects) return {first.MedianUs()};
  const double seconds = static_cast<double>(Now() - std::max(first.began(), second.began())) / kSecond;
  const double slices = 2.0 * static_cast<double>(pattern.slices - static_cast<uint64_t>(pattern.window));
  return {slices * pattern.bytes / (1 << 20) / seconds, first.Rate() + second.Rate()};
}

int Main(const std::string& what, uint32_t bytes, int slots) {
  Pattern pattern{.bytes = bytes, .slices = kStreamBytes / bytes};
  if (what == "written") pattern.how = How::kWritten;
  if (what == "read") pattern.how = How::kRead;
  if (what == "reflect") pattern = {.bytes = bytes, .slices = kReflections, .reflects = true};
  const auto make = [&](TransportConfig config) {
    config.settings.Set("verbs_read_bytes", pattern.how == How::kRead ? int64_t{bytes} : 0);
    return CreateVerbsTransport(config);
  };
  const LinkOptions options{.slot_bytes = slots > 0 ? bytes : kSlotBytes, .slots = slots > 0 ? slots : kSlots};
  const auto link = TransportLink::Open(make, nullptr, options);
  if (link == nullptr) return 1;
  if (!pattern.reflects) pattern.window = link->end(0).limits().recv_slots;
  const Result result = Run(link.get(), pattern);
  if (result.rate == 0) return 1;
  std::printf("verbs_stream %s %u bytes, %d slots: %.1f ", what.c_str(), bytes, link->end(0).limits().recv_slots,
              result.rate);
  if (pattern.reflects) {
    std::printf("us, half of the way there and back, median\n");
  } else {
    std::printf("MiB/s, both directions; %.1f, each end's own time\n", result.of_ends);
  }
  return 0;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  const bool has_slots = argc == 4;
  const std::string what = argc == 3 || has_slots ? argv[1] : "";
  const long bytes = argc >= 3 ? std::strtol(argv[2], nullptr, 10) : 0;
  const long slots = has_slots ? std::strtol(argv[3], nullptr, 10) : 0;
  const bool known = what == "slots" || what == "written" || what == "read" || what == "reflect";
  if (!known || bytes < 1 || bytes > static_cast<long>(annulus::kSlotBytes) ||
      (has_slots && (slots < 1 || slots > 64))) {
    std::fprintf(stderr, "usage: verbs_stream slots|written|read|reflect BYTES [SLOTS]\n");
    return 2;
  }
  const char* const log = std::getenv("ANNULUS_LOG");
  if (log != nullptr && std::string(log) == "info") annulus::SetLogLevel(annulus::LogLevel::kInfo);
  return annulus::Main(what, static_cast<uint32_t>(bytes), static_cast<int>(slots));
}
