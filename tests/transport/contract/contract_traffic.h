// Seeded traffic over one direction of a link: what is sent, in which sizes, and whether it arrived unharmed.
//
// A SliceTalker posts slices and raises their `ready`; a SliceListener posts receives, checks every byte and gives
// slots back late and out of order. They check the contract's rules on the way, and stop at the first breach.
//
// Threads: a SliceTalker and a SliceListener each belong to the thread that drives their endpoint.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "base/clock.h"
#include "transport/memory/memory.h"
#include "transport/transport.h"

namespace annulus {

// The registered memory of a test program.
inline MemoryRegistry& TestRegistry() {
  static MemoryRegistry registry;
  return registry;
}

// Whether PostSend of `end` takes [data, data + bytes), which is no slot.
inline bool SendsFrom(Endpoint& end, const std::byte* data, size_t bytes) {
  InPlace* const in_place = end.shortcuts().in_place;
  return end.limits().sends_from.Has(MemoryKind::kHost) || (in_place != nullptr && in_place->SendsFrom(data, bytes));
}

// The bytes from which all slices are cut, so that they are filled by memcpy and checked by memcmp: these are fast
// under a sanitizer too.
class SlicePool {
 public:
  static constexpr size_t kMostBytes = size_t{2} << 20;  // The largest slice.

  // kMostBytes, from one of many places in the pool.
  static const std::byte* At(uint64_t mix) {
    static const SlicePool pool;
    return pool.bytes_.data() + (mix >> 16) % kPlaces;
  }

 private:
  static constexpr size_t kPlaces = 65521;

  SlicePool() : bytes_(kMostBytes + kPlaces) {
    std::mt19937 random(1);
    for (std::byte& each : bytes_) each = static_cast<std::byte>(random() >> 24);
  }

  std::vector<std::byte> bytes_;
};

// Both ends know a stream's plan, so both know what each slice should hold.
struct Plan {
  uint64_t seed = 1;
  int slices = 100;
  size_t max_bytes = 4096;
  int window = 16;       // Requests under way at once.
  bool gradual = false;  // SliceTalker: post with part of the slice ready and raise it in random steps.
  bool landing = false;  // SliceListener: name landing memory for half of the receives.

  uint64_t Mix(uint64_t slice) const {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + slice;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  // Zero, one, full, and anything between.
  uint32_t Bytes(uint64_t slice) const {
    const uint64_t random = Mix(slice);
    switch (random % 8) {
      case 0:
        return 0;
      case 1:
        return 1;
      case 2:
      case 3:
        return static_cast<uint32_t>(max_bytes);
      default:
        return static_cast<uint32_t>((random >> 8) % (max_bytes + 1));
    }
  }
  std::byte At(uint64_t slice, size_t offset) const { return SlicePool::At(Mix(slice))[offset]; }
  void Fill(uint64_t slice, std::byte* data, size_t begin, size_t end) const {
    if (begin < end) std::memcpy(data + begin, SlicePool::At(Mix(slice)) + begin, end - begin);
  }
  // The offset of the first wrong byte of data[begin, end), or -1.
  int64_t FirstWrong(uint64_t slice, const std::byte* data, size_t begin, size_t end) const {
    const std::byte* const wanted = SlicePool::At(Mix(slice));
    if (begin >= end || std::memcmp(data + begin, wanted + begin, end - begin) == 0) return -1;
    return std::mismatch(data + begin, data + end, wanted + begin).first - data;
  }
  int64_t FirstWrong(uint64_t slice, const std::byte* data, size_t bytes) const {
    return FirstWrong(slice, data, 0, bytes);
  }
  Tag TagOf(uint64_t slice) const { return {{seed, slice, Mix(slice), ~Mix(slice)}}; }
};

class SliceTalker {
 public:
  SliceTalker(Endpoint* endpoint, const Plan& plan)
      : endpoint_(endpoint), plan_(plan), random_(plan.seed), flights_(plan.window), stride_(plan.max_bytes + 1) {
    // Registered, so that a transport may let the peer read it in place.
    void* memory = nullptr;
    const Status status = TestRegistry().Allocate(stride_ * flights_.size(), &memory);
    EXPECT_TRUE(status.ok()) << status.ToString();
    broken_ = !status.ok();
    memory_ = static_cast<std::byte*>(memory);
    for (size_t i = 0; i < flights_.size() && !broken_; ++i) flights_[i].memory = memory_ + i * stride_;
  }
  SliceTalker(const SliceTalker&) = delete;
  ~SliceTalker() { EXPECT_TRUE(memory_ == nullptr || TestRegistry().Free(memory_).ok()); }

  // Posts, raises and retires what it can. Returns whether it did anything.
  bool Step() {
    bool worked = Retire();
    for (int i = retired_; i < posted_; ++i) worked |= Raise(At(i));
    while (posted_ < plan_.slices && posted_ - retired_ < plan_.window && PostOne()) worked = true;
    return worked;
  }
  bool done() const { return broken_ || retired_ == plan_.slices; }
  bool broken() const { return broken_; }
  int posted() const { return posted_; }

 private:
  struct Flight {
    Send send;
    std::byte* memory = nullptr;
    uint64_t slice = 0;
  };

  Flight& At(int index) { return flights_[index % plan_.window]; }

  bool Retire() {
    const int before = retired_;
    while (retired_ < posted_ && At(retired_).send.code != Code::kInProgress) {
      const Flight& flight = At(retired_);
      if (flight.send.code != Code::kOk) return Break("a send failed", flight.slice);
      if (flight.send.ready != flight.send.bytes) return Break("a send completed before all was ready", flight.slice);
      const bool lent_user_memory = flight.send.data >= flight.memory && flight.send.data < flight.memory + stride_;
      if (lent_user_memory && plan_.FirstWrong(flight.slice, flight.send.data, flight.send.bytes) >= 0) {
        return Break("the transport wrote into memory that was lent for sending", flight.slice);
      }
      ++retired_;
    }
    for (int i = retired_; i < posted_; ++i) {
      if (At(i).send.code == Code::kOk) return Break("a send completed out of order", At(i).slice);
    }
    return retired_ != before;
  }

  bool Raise(Flight& flight) {
    Send& send = flight.send;
    if (send.ready == send.bytes) return false;
    const uint32_t step = 1 + static_cast<uint32_t>(random_() % (plan_.max_bytes / 3 + 1));
    const uint32_t ready = std::min(send.bytes, send.ready + step);
    plan_.Fill(flight.slice, const_cast<std::byte*>(send.data), send.ready, ready);
    send.ready = ready;
    return true;
  }

  bool PostOne() {
    Flight& flight = At(posted_);
    if (!prepared_ && !Prepare(flight)) return false;
    const Status status = endpoint_->PostSend(&flight.send);
    if (!status.ok()) return status.would_block() ? false : Break(status.ToString().c_str(), posted_);
    if (flight.send.code != Code::kInProgress) return Break("PostSend completed inline", posted_);
    prepared_ = false;
    ++posted_;
    return true;
  }

  bool Prepare(Flight& flight) {
    std::byte* data = flight.memory + posted_ % 2;
    if (plan_.Mix(posted_) % 3 == 0 || !SendsFrom(*endpoint_, data, plan_.Bytes(posted_))) {
      const Status status = endpoint_->AcquireSlot(plan_.Bytes(posted_), &data);
      if (!status.ok()) return status.would_block() ? false : Break(status.ToString().c_str(), posted_);
    }
    flight.slice = posted_;
    flight.send = Send();
    flight.send.tag = plan_.TagOf(posted_);
    flight.send.bytes = plan_.Bytes(posted_);
    flight.send.ready = plan_.gradual ? static_cast<uint32_t>(random_() % (flight.send.bytes + 1)) : flight.send.bytes;
    flight.send.data = data;
    plan_.Fill(posted_, data, 0, flight.send.ready);
    prepared_ = true;
    return true;
  }

  bool Break(const char* why, uint64_t slice) {
    ADD_FAILURE() << "talker, seed " << plan_.seed << ", slice " << slice << ": " << why;
    broken_ = true;
    return false;
  }

  Endpoint* const endpoint_;
  const Plan plan_;
  std::mt19937_64 random_;
  std::vector<Flight> flights_;
  const size_t stride_;
  std::byte* memory_ = nullptr;
  bool prepared_ = false;  // The next send is filled, and waits to be accepted.
  int posted_ = 0;
  int retired_ = 0;
  bool broken_ = false;
};

class SliceListener {
 public:
  SliceListener(Endpoint* endpoint, const Plan& plan)
      : endpoint_(endpoint),
        plan_(plan),
        random_(plan.seed ^ 0x5eed),
        flights_(plan.window),
        stride_(plan.max_bytes + kGuardBytes + 1) {
    // Registered, so that slices may land there.
    void* memory = nullptr;
    const Status status = TestRegistry().Allocate(stride_ * flights_.size(), &memory);
    EXPECT_TRUE(status.ok()) << status.ToString();
    broken_ = !status.ok();
    memory_ = static_cast<std::byte*>(memory);
    for (size_t i = 0; i < flights_.size() && !broken_; ++i) flights_[i].memory = memory_ + i * stride_;
  }
  SliceListener(const SliceListener&) = delete;
  ~SliceListener() { EXPECT_TRUE(memory_ == nullptr || TestRegistry().Free(memory_).ok()); }

  // Posts, checks, retires and releases what it can. Returns whether it did anything.
  bool Step() {
    bool worked = Observe();
    worked |= ReleaseSome();
    while (posted_ < plan_.slices && posted_ - retired_ < plan_.window && !At(posted_).held && PostOne()) worked = true;
    return worked;
  }
  bool done() const { return broken_ || (retired_ == plan_.slices && held_ == 0); }
  bool broken() const { return broken_; }

 private:
  static constexpr std::byte kGuard{0xc5};
  static constexpr size_t kGuardBytes = 16;

  struct Flight {
    Recv recv;
    std::byte* memory = nullptr;
    uint64_t slice = 0;
    uint32_t seen = 0;  // `arrived` when last looked at.
    bool may_land = false;
    bool held = false;
  };

  Flight& At(int index) { return flights_[index % plan_.window]; }

  bool PostOne() {
    Flight& flight = At(posted_);
    flight.recv = Recv();
    flight.recv.capacity = static_cast<uint32_t>(plan_.max_bytes);
    const bool lands = plan_.landing && plan_.Mix(posted_) % 2 == 0;
    if (lands) std::fill_n(flight.memory, stride_, kGuard);
    if (lands) flight.recv.landing = flight.memory + posted_ % 2;
    flight.may_land = lands && MayLand(endpoint_, MemoryKind::kHost, flight.recv.landing, flight.recv.capacity);
    const Status status = endpoint_->PostRecv(&flight.recv);
    if (!status.ok()) return status.would_block() ? false : Break(status.ToString().c_str(), posted_);
    if (flight.recv.code != Code::kInProgress) return Break("PostRecv completed inline", posted_);
    flight.slice = posted_++;
    flight.seen = 0;
    return true;
  }

  bool Observe() {
    bool worked = false;
    bool pending_seen = false;
    for (int i = retired_; i < posted_ && !broken_; ++i) {
      Flight& flight = At(i);
      if (!CheckProgressOf(flight)) return false;
      worked |= flight.recv.arrived != flight.seen;
      flight.seen = flight.recv.arrived;
      if (flight.recv.code == Code::kInProgress) {
        pending_seen = true;
      } else if (pending_seen) {
        return Break("a receive completed out of order", flight.slice);
      } else {
        Retire(flight);
        worked = true;
      }
    }
    return worked;
  }

  bool CheckProgressOf(const Flight& flight) {
    const Recv& recv = flight.recv;
    if (recv.arrived < flight.seen) return Break("`arrived` shrank", flight.slice);
    if (recv.code != Code::kInProgress && recv.code != Code::kOk) return Break(CodeName(recv.code), flight.slice);
    if (!recv.started) {
      return recv.arrived == 0 && recv.code == Code::kInProgress ? true : Break("not started", flight.slice);
    }
    if (recv.tag != plan_.TagOf(flight.slice)) return Break("wrong tag", flight.slice);
    if (recv.bytes != plan_.Bytes(flight.slice)) return Break("wrong size", flight.slice);
    if (recv.arrived > recv.bytes) return Break("more arrived than was sent", flight.slice);
    if (recv.arrived == 0) return true;
    if (recv.data == nullptr) return Break("data is null", flight.slice);
    const bool should_land = recv.landing != nullptr && endpoint_->limits().lands_in.Has(MemoryKind::kHost);
    const bool lands = recv.data == recv.landing;
    if (lands != should_land && !(lands && flight.may_land)) return Break("landed where it must not", flight.slice);
    const bool right = plan_.FirstWrong(flight.slice, recv.data, flight.seen, recv.arrived) < 0;
    return right || Break("wrong content", flight.slice);
  }

  void Retire(Flight& flight) {
    const Recv& recv = flight.recv;
    ++retired_;
    if (recv.arrived != recv.bytes) Break("completed before all had arrived", flight.slice);
    if (recv.data != recv.landing) {
      flight.held = true;
      ++held_;
      return;
    }
    if (recv.landing == nullptr) return;
    const std::byte* end = recv.landing + recv.bytes;
    if (!std::all_of(end, end + kGuardBytes, [](std::byte b) { return b == kGuard; })) {
      Break("bytes behind the slice were written", flight.slice);
    }
  }

  // A slot must keep its content until it is released, whatever else arrives.
  bool ReleaseSome() {
    bool worked = false;
    for (Flight& flight : flights_) {
      if (!flight.held || random_() % 2 == 0) continue;
      if (plan_.FirstWrong(flight.slice, flight.recv.data, flight.recv.bytes) >= 0) {
        return Break("a held slot was overwritten", flight.slice);
      }
      if (!flight.recv.read_only) std::memset(flight.recv.data, 0xee, flight.recv.bytes);  // Ours until Release.
      endpoint_->Release(&flight.recv);
      flight.held = false;
      --held_;
      worked = true;
    }
    return worked || held_ > 0;
  }

  bool Break(const char* why, uint64_t slice) {
    ADD_FAILURE() << "listener, seed " << plan_.seed << ", slice " << slice << ": " << why;
    broken_ = true;
    return false;
  }

  Endpoint* const endpoint_;
  const Plan plan_;
  std::mt19937_64 random_;
  std::vector<Flight> flights_;
  const size_t stride_;
  std::byte* memory_ = nullptr;
  int posted_ = 0;
  int retired_ = 0;
  int held_ = 0;
  bool broken_ = false;
};

// Fills the link in direction `side` -> peer until it takes no more; nobody receives.
inline std::vector<Send*> Saturate(Endpoint& endpoint, std::deque<Send>* sends, Deadline deadline) {
  std::vector<Send*> posted;
  std::byte* slot = nullptr;
  for (int idle = 0; idle < 200 && posted.size() < 20000 && Now() < deadline; ++idle) {
    bool moved = false;
    if (slot == nullptr && !endpoint.AcquireSlot(Endpoint::kWholeSlot, &slot).ok()) {
      (void)endpoint.Progress(&moved);
      continue;
    }
    Send* send = &sends->emplace_back();
    send->data = slot;
    send->bytes = send->ready = static_cast<uint32_t>(endpoint.limits().slot_bytes);
    if (!endpoint.PostSend(send).ok()) {
      (void)endpoint.Progress(&moved);
      continue;
    }
    slot = nullptr;
    posted.push_back(send);
    idle = 0;
  }
  return posted;
}

}  // namespace annulus
