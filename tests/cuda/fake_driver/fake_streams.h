// FakeStreams: the streams and events of the stand-in's devices, and what in which stream comes after what in another.
//
// Work of a stream has numbers, from 1. A clock gives for each stream the last number that must be done before.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <thread>
#include <utility>

namespace annulus::cuda {

class FakeStreams {
 public:
  using Clock = std::map<int, uint64_t>;

  // Positive; those of default streams are negative.
  int New(int device, bool is_blocking) {
    streams_[next_] = {device, is_blocking};
    return next_++;
  }
  // The legacy default stream of a device, and that of the calling thread.
  int Legacy(int device) {
    const int number = -1 - device;
    streams_.try_emplace(number, Stream{device, false});
    return number;
  }
  int OfThisThread(int device) {
    const auto [found, is_new] = of_threads_.try_emplace({std::this_thread::get_id(), device}, next_of_thread_);
    if (is_new) streams_[next_of_thread_--] = {device, true};
    return found->second;
  }
  // A stream of the stand-in's own, for a node of a graph.
  int NewOfNode(int device) {
    streams_[next_of_node_] = {device, false};
    return next_of_node_--;
  }
  // What comes next in `stream` comes after all that `other` has.
  void Follow(int stream, int other) { Merge(Clock(ClockOf(other)), &streams_[stream].clock); }
  bool Destroy(int stream) { return streams_.erase(stream) == 1; }
  // Those of a device go with its context, and the events with them.
  void Lose(int device) {
    for (const auto& [number, stream] : streams_) {
      if (stream.device == device && number > 0) lost_.insert(number);
    }
    std::erase_if(streams_, [=](const auto& each) { return each.second.device == device; });
    std::erase_if(of_threads_, [=](const auto& each) { return each.first.second == device; });
    for (const auto& [event, owner] : owners_) {
      if (owner == device && events_.erase(event) == 1) lost_events_.insert(event);
    }
  }
  bool IsLost(int stream) const { return lost_.contains(stream); }
  bool IsLostEvent(int event) const { return lost_events_.contains(event); }

  bool Has(int stream) const { return streams_.count(stream) == 1; }
  int DeviceOf(int stream) const {
    const auto found = streams_.find(stream);
    return found == streams_.end() ? -1 : found->second.device;
  }
  // Those that the program has made.
  int count() const {
    int count = 0;
    for (const auto& [number, stream] : streams_) count += number > 0 ? 1 : 0;
    return count;
  }

  // What must be done before the next work of the stream, and before what waits for it now.
  const Clock& ClockOf(int stream) {
    Meet(stream);
    return streams_[stream].clock;
  }
  // Takes out of the stream's clock what is done: `oldest` has the oldest work of each stream that is not. Clocks would
  // grow with every stream that there ever was.
  void ForgetDone(int stream, const Clock& oldest) {
    std::erase_if(streams_[stream].clock, [&](const auto& each) {
      const auto found = oldest.find(each.first);
      return each.first != stream && (found == oldest.end() || found->second > each.second);
    });
  }
  // The number of new work, which comes after the clock.
  uint64_t Add(int stream) {
    Stream& own = streams_[stream];
    own.clock[stream] = ++own.last;
    return own.last;
  }

  int NewEvent(int device) {
    events_[next_event_];
    owners_[next_event_] = device;
    return next_event_++;
  }
  bool DestroyEvent(int event) {
    owners_.erase(event);
    return events_.erase(event) == 1;
  }
  bool HasEvent(int event) const { return events_.count(event) == 1; }
  int events() const { return static_cast<int>(events_.size()); }
  void Record(int event, int stream) { events_[event] = ClockOf(stream); }
  void Wait(int stream, int event) { Merge(events_[event], &streams_[stream].clock); }

 private:
  struct Stream {
    int device = 0;
    bool is_blocking = false;  // Waits for the legacy default stream, and is waited for by it.
    uint64_t last = 0;
    Clock clock = {};
  };

  static void Merge(const Clock& from, Clock* to) {
    for (const auto& [stream, number] : from) {
      if ((*to)[stream] < number) (*to)[stream] = number;
    }
  }
  // The rule of the legacy default stream.
  void Meet(int stream) {
    Stream& own = streams_[stream];
    const int legacy = Legacy(own.device);
    if (own.is_blocking) Merge(Clock(streams_[legacy].clock), &own.clock);
    if (stream != legacy) return;
    for (const auto& [number, other] : streams_) {
      if (other.is_blocking && other.device == own.device) Merge(other.clock, &streams_[legacy].clock);
    }
  }

  std::map<int, Stream> streams_;
  std::map<std::pair<std::thread::id, int>, int> of_threads_;
  std::map<int, Clock> events_;
  std::map<int, int> owners_;  // Devices of the events.
  std::set<int> lost_;         // Streams,
  std::set<int> lost_events_;  // and events, of contexts that are gone. No number comes again.
  int next_ = 16;              // Some first handles are the driver's own.
  int next_of_thread_ = -1000;
  int next_of_node_ = -1'000'000;
  int next_event_ = 1;
};

}  // namespace annulus::cuda
