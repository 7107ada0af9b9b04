// Communicator's progress thread, and the order in which it takes what is queued.
//
// With priorities the ranks must overtake alike, though each queue has its own state at any time. So rank 0 chooses,
// and announces the chosen call's number, which is the same on all ranks, by a broadcast.
#include <algorithm>

#include "collectives/comm/communicator.h"

namespace annulus {

void Communicator::ProgressThread() {
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    changed_.wait(lock,
                  [this] { return (stopping_ || !queue_.empty() || !unfinished_messages_.empty()) && !driving_; });
    if (stopping_) FailMessages(Code::kAborted);
    if (queue_.empty() && stopping_) return;
    if (queue_.empty()) {
      const auto over = [this] { return stopping_ || !queue_.empty() || unfinished_messages_.empty(); };
      DriveMessages(over, background_policy_, &lock);
      continue;
    }
    Request* request = queue_.front();
    Code code = Next(&lock, &request);
    if (code == Code::kOk) {
      const Segments* segments = request->members.empty() ? nullptr : &request->segments;
      code = Drive(request->arguments, segments, request->call, background_policy_, &lock);
    }
    queue_.erase(std::find(queue_.begin(), queue_.end(), request));
    Finish(request, code);
  }
}

Code Communicator::Next(std::unique_lock<std::mutex>* lock, Request** next) {
  Code code = Code::kOk;
  if (stopping_) return Code::kAborted;
  if (Refused(&code) || !priorities()) return code;
  uint64_t number = FirstByPriority()->number;
  if (nranks() > 1) {
    code = Announce(lock, &number);
    if (code != Code::kOk) return code;
  }
  *next = Queued(number);
  (*next)->call.sequence = ++sequence_;
  return Code::kOk;
}

// Sets *number to rank 0's, and waits until that call is queued here too.
Code Communicator::Announce(std::unique_lock<std::mutex>* lock, uint64_t* number) {
  CallArguments announcement;
  announcement.kind = CollectiveKind::kBroadcast;
  announcement.sendbuf = announcement.recvbuf = number;
  announcement.count = 1;
  announcement.type = DataType::kInt64;
  const Call call = CallOf(announcement, nranks(), ++sequence_);
  Code code = Drive(announcement, nullptr, call, background_policy_, lock);
  if (code != Code::kOk) return code;
  const auto over = [this, number] { return stopping_ || Queued(*number) != nullptr; };
  // A call that never comes makes the others' next one late, and the verdict ends this.
  if (!over()) DriveMessages(over, background_policy_, lock);
  if (stopping_) return Code::kAborted;
  Refused(&code);
  return code;
}

Request* Communicator::FirstByPriority() const {
  return *std::max_element(queue_.begin(), queue_.end(), [](const Request* left, const Request* right) {
    return left->priority != right->priority ? left->priority < right->priority : left->number > right->number;
  });
}

Request* Communicator::Queued(uint64_t number) const {
  const auto found = std::find_if(queue_.begin(), queue_.end(),
                                  [number](const Request* request) { return request->number == number; });
  return found != queue_.end() ? *found : nullptr;
}

Code Communicator::SetPriority(int priority) {
  std::lock_guard<std::mutex> lock(mu_);
  Code code = Code::kOk;
  if (Refused(&code)) return code;
  if (!priorities()) {
    RecordRefusal(Status::Invalid("priorities are off; set ANNULUS_PRIORITIES=1 (or the config's field) on all ranks"));
    return Code::kInvalidArgument;
  }
  priority_ = priority;
  return Code::kOk;
}

}  // namespace annulus
