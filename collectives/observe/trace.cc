#include "collectives/observe/trace.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

namespace annulus {
namespace {

uint64_t PackCall(const TraceEvent& event) {
  return uint64_t{static_cast<uint8_t>(event.call.kind)} | uint64_t{static_cast<uint8_t>(event.call.type)} << 8 |
         uint64_t{event.label} << 16 | uint64_t{event.chunk} << 32;
}

uint64_t PackKind(const TraceEvent& event) {
  return uint64_t{static_cast<uint8_t>(event.kind)} | uint64_t{event.ok} << 8 |
         uint64_t{static_cast<uint16_t>(event.channel)} << 16 | uint64_t{static_cast<uint32_t>(event.peer)} << 32;
}

}  // namespace

Trace::Trace(size_t events) : capacity_(events), ring_(std::make_unique<Record[]>(events)) {}

Trace::Words Trace::Pack(const TraceEvent& event) {
  return {static_cast<uint64_t>(event.begin),
          static_cast<uint64_t>(event.took),
          PackKind(event),
          PackCall(event),
          event.bytes,
          event.slice,
          event.call.sequence,
          event.call.count};
}

TraceEvent Trace::Unpack(const Words& words) {
  TraceEvent event;
  event.begin = static_cast<Nanoseconds>(words[0]);
  event.took = static_cast<Nanoseconds>(words[1]);
  event.kind = static_cast<TraceEvent::Kind>(words[2] & 0xff);
  event.ok = (words[2] >> 8 & 1) != 0;
  event.channel = static_cast<int>(words[2] >> 16 & 0xffff);
  event.peer = static_cast<int32_t>(words[2] >> 32);
  event.call.kind = static_cast<CollectiveKind>(words[3] & 0xff);
  event.call.type = static_cast<DataType>(words[3] >> 8 & 0xff);
  event.label = static_cast<uint16_t>(words[3] >> 16);
  event.chunk = static_cast<uint32_t>(words[3] >> 32);
  event.bytes = words[4];
  event.slice = words[5];
  event.call.sequence = words[6];
  event.call.count = words[7];
  return event;
}

void Trace::Add(const TraceEvent& event) {
  const Words words = Pack(event);
  const uint64_t number = added_.load(std::memory_order_relaxed);
  Record& record = ring_[number % capacity_];
  // Release: a reader that sees a word of this event also sees, when it reads added_ again, that all events before it
  // were complete. So it knows which record may be torn.
  for (size_t i = 0; i < kWords; ++i) record[i].store(words[i], std::memory_order_release);
  added_.store(number + 1, std::memory_order_release);
}

void Trace::Begin(const Call& call, Nanoseconds now) {
  call_ = call;
  call_begin_ = waited_until_ = now;
  call_label_ = std::exchange(next_label_, uint16_t{0});
  TraceEvent event;
  event.kind = TraceEvent::Kind::kCollective;
  event.label = call_label_;
  event.call = call;
  event.begin = now;
  const Words words = Pack(event);
  for (size_t i = kWords; i-- > 0;) open_[i].store(words[i], std::memory_order_release);
}

void Trace::End(bool ok, Nanoseconds now) {
  TraceEvent event;
  event.kind = TraceEvent::Kind::kCollective;
  event.ok = ok;
  event.label = call_label_;
  event.call = call_;
  event.begin = call_begin_;
  event.took = now - call_begin_;
  Add(event);
  open_[0].store(0, std::memory_order_release);
}

void Trace::AddWait(int peer, Nanoseconds begin, Nanoseconds end) {
  TraceEvent event;
  event.kind = TraceEvent::Kind::kWait;
  event.peer = peer;
  event.call.sequence = call_.sequence;
  event.begin = std::min(std::max(begin, waited_until_), end);
  event.took = end - event.begin;
  waited_until_ = end;
  Add(event);
}

void Trace::AddSleep(Nanoseconds begin, Nanoseconds end) {
  TraceEvent event;
  event.kind = TraceEvent::Kind::kSleep;
  event.begin = begin;
  event.took = end - begin;
  Add(event);
}

uint16_t Trace::LabelOf(const char* label) {
  if (label == nullptr || *label == '\0') return 0;
  const std::string_view text(label, strnlen(label, kLabelBytes));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto known = labels_.find(text); known != labels_.end()) return known->second;
  if (labels_.size() == kLabels) return 0;
  try {
    return labels_.emplace(text, static_cast<uint16_t>(labels_.size() + 1)).first->second;
  } catch (const std::bad_alloc&) {  // Whoever drives a call must end it all the same.
    return 0;
  }
}

void Trace::AddLink(TraceLink link) {
  const std::lock_guard<std::mutex> lock(mutex_);
  links_.push_back(std::move(link));
}

void Trace::SetVerdict(const Verdict& verdict, Nanoseconds now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (verdict_.code != Code::kOk) return;
  verdict_ = verdict;
  verdict_at_ = now;
}

Trace::Content Trace::Read(Nanoseconds now, size_t most) const {
  Content content;
  const uint64_t end = added_.load(std::memory_order_acquire);
  const uint64_t kept = std::min(capacity_, most);
  uint64_t begin = end > kept ? end - kept : 0;
  for (uint64_t i = begin; i < end; ++i) {
    Words words;
    for (size_t w = 0; w < kWords; ++w) words[w] = ring_[i % capacity_][w].load(std::memory_order_acquire);
    content.events.push_back(Unpack(words));
  }
  Words open;
  for (size_t w = 0; w < kWords; ++w) open[w] = open_[w].load(std::memory_order_acquire);
  // Events that the writer added meanwhile, and the record that it may be writing, replaced the oldest ones.
  const uint64_t reached = added_.load(std::memory_order_acquire) + 1;
  const uint64_t intact = reached > capacity_ ? reached - capacity_ : 0;
  const uint64_t torn = std::min(std::max(intact, begin), end) - begin;
  content.events.erase(content.events.begin(), content.events.begin() + static_cast<ptrdiff_t>(torn));
  begin += torn;
  content.dropped = begin;
  if (open[0] != 0) {
    content.unfinished = true;
    content.events.push_back(Unpack(open));
    content.events.back().took = std::max<Nanoseconds>(now - content.events.back().begin, 0);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  content.links = links_;
  content.labels.resize(labels_.size() + 1);
  for (const auto& [text, number] : labels_) content.labels[number] = text;
  content.verdict = verdict_;
  content.verdict_at = verdict_at_;
  return content;
}

}  // namespace annulus
