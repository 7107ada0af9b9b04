// Streams slices over one verbs link of a real device, both ways at once, and reflects small ones: what the transport
// itself moves, beside ib_write_bw and ib_write_lat in the same guest. Nothing is reduced, filled or checked.
//
//   verbs_stream slots|registered BYTES       slices of so many bytes from slots, or from registered memory to such
//   verbs_stream reflect BYTES                one slice there and back at a time
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
#include "tests/transport/contract/contract_link.h"
#include "transport/memory/memory.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"

namespace annulus {
namespace {

constexpr size_t kSlotBytes = 256 * 1024;
constexpr int kSlots = 8;
constexpr uint64_t kStreamBytes = 16 << 20;  // In each direction.
constexpr uint64_t kReflections = 1000;

struct Pattern {
  uint32_t bytes = 0;
  uint64_t slices = 0;  // In each direction.
  int window = kSlots;  // Sends and receives under way.
  bool registered = false;
  bool reflects = false;  // Rank 1 sends a slice once it has received one, and rank 0 the next one then.
};

class End {
 public:
  End(Endpoint* endpoint, const Pattern& pattern, bool begins)
      : endpoint_(endpoint),
        pattern_(pattern),
        begins_(begins),
        sends_(static_cast<size_t>(pattern.window)),
        recvs_(static_cast<size_t>(pattern.window)) {
    void* memory = nullptr;
    if (pattern.registered && TestRegistry().Allocate(2 * Half(), &memory).ok()) {
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
    if (!moved) sched_yield();
    return true;
  }
  // Half of the median time from one slice to the next, in microseconds.
  double MedianUs() const {
    std::vector<Nanoseconds> gaps;
    for (size_t i = 1; i < times_.size(); ++i) gaps.push_back(times_[i] - times_[i - 1]);
    std::ranges::sort(gaps);
    return gaps.empty() ? 0 : static_cast<double>(gaps[gaps.size() / 2]) / 2 / kMicrosecond;
  }
  bool done() const { return sent_ == pattern_.slices && received_ == pattern_.slices; }

 private:
  size_t Half() const { return sends_.size() * pattern_.bytes; }

  bool Receive(bool* moved) {
    while (received_ < expected_) {
      Recv& recv = recvs_[received_ % recvs_.size()];
      if (recv.code == Code::kInProgress) break;
      if (recv.code != Code::kOk) return false;
      if (recv.data != recv.landing) endpoint_->Release(&recv);
      ++received_;
      if (pattern_.reflects) times_.push_back(Now());
      *moved = true;
    }
    while (expected_ < pattern_.slices && expected_ < received_ + recvs_.size()) {
      Recv& recv = recvs_[expected_ % recvs_.size()];
      recv = Recv();
      recv.capacity = pattern_.bytes;
      if (memory_ != nullptr) recv.landing = memory_ + Half() + expected_ % recvs_.size() * pattern_.bytes;
      if (!endpoint_->PostRecv(&recv).ok()) break;
      ++expected_;
      *moved = true;
    }
    return true;
  }

  bool Post(bool* moved) {
    while (sent_ < posted_ && sends_[sent_ % sends_.size()].code != Code::kInProgress) {
      if (sends_[sent_++ % sends_.size()].code != Code::kOk) return false;
      *moved = true;
    }
    const uint64_t most = pattern_.reflects ? received_ + (begins_ ? 1 : 0) : pattern_.slices;
    while (posted_ < std::min(most, pattern_.slices) && posted_ < sent_ + sends_.size()) {
      Send& send = sends_[posted_ % sends_.size()];
      send = Send();
      std::byte* slot = nullptr;
      if (memory_ == nullptr && !endpoint_->AcquireSlot(&slot).ok()) break;
      send.data = memory_ == nullptr ? slot : memory_ + posted_ % sends_.size() * pattern_.bytes;
      send.bytes = send.ready = pattern_.bytes;
      if (!endpoint_->PostSend(&send).ok()) return false;
      ++posted_;
      *moved = true;
    }
    return true;
  }

  Endpoint* const endpoint_;
  const Pattern pattern_;
  const bool begins_;
  std::byte* memory_ = nullptr;  // Of sends, then of receives; null: slots.
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  uint64_t posted_ = 0;
  uint64_t sent_ = 0;
  uint64_t expected_ = 0;
  uint64_t received_ = 0;
  std::vector<Nanoseconds> times_;  // When slices came that are reflected.
};

// Seconds that the pattern takes, or half of the way there and back in microseconds; 0 when the link fails.
double Run(ContractLink* link, const Pattern& pattern) {
  End first(&link->end(0), pattern, true);
  End second(&link->end(1), pattern, false);
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
  const Nanoseconds begin = Now();
  std::thread other(drive, &second);
  drive(&first);
  other.join();
  if (fails) return 0;
  return pattern.reflects ? first.MedianUs() : static_cast<double>(Now() - begin) / kSecond;
}

int Main(const std::string& what, uint32_t bytes) {
  const auto link = TransportLink::Open(CreateVerbsTransport, nullptr, {.slot_bytes = kSlotBytes, .slots = kSlots});
  if (link == nullptr) return 1;
  Pattern pattern{.bytes = bytes, .slices = kStreamBytes / bytes, .registered = what == "registered"};
  if (what == "reflect") pattern = {.bytes = bytes, .slices = kReflections, .window = 1, .reflects = true};
  const double took = Run(link.get(), pattern);
  if (took == 0) return 1;
  std::printf("verbs_stream %s %u bytes: ", what.c_str(), bytes);
  if (pattern.reflects) {
    std::printf("%.1f us, half of the way there and back, median\n", took);
  } else {
    std::printf("%.1f MiB/s in both directions together\n", 2.0 * kStreamBytes / (1 << 20) / took);
  }
  return 0;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  const long bytes = argc == 3 ? std::strtol(argv[2], nullptr, 10) : 0;
  const bool known = what == "slots" || what == "registered" || what == "reflect";
  if (!known || bytes < 1 || bytes > static_cast<long>(annulus::kSlotBytes)) {
    std::fprintf(stderr, "usage: verbs_stream slots|registered|reflect BYTES\n");
    return 2;
  }
  return annulus::Main(what, static_cast<uint32_t>(bytes));
}
