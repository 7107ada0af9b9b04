#include "transport/tcp/session/tcp_queues.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace annulus {
namespace {

// In a request's cookie: the request is done but waits for earlier ones.
constexpr uint64_t kDone = 1;

// How far a frame's number may be ahead of the posted receives when lanes run unevenly. Frames in flight lie in socket
// buffers: a few MiB, in frames of at least 64 bytes. A number beyond this bound is damage.
constexpr uint64_t kMaxSequencesAhead = uint64_t{1} << 20;

}  // namespace

void SendQueue::Post(Send* send) {
  ANNULUS_CHECK(send->ready <= send->bytes);
  send->next = nullptr;
  send->cookie = 0;
  send->code = Code::kInProgress;
  (head_ == nullptr ? head_ : tail_->next) = send;
  tail_ = send;
  if (untaken_ == nullptr) untaken_ = send;
}

uint64_t SendQueue::NumberSend() {
  untaken_ = untaken_->next;
  return taken_++;
}

void SendQueue::MarkDone(Send* send, bool* moved) {
  send->cookie = kDone;
  while (head_ != nullptr && head_->cookie == kDone) {
    CompleteHead(Code::kOk);
    *moved = true;
  }
}

void SendQueue::FailAll(Code code) {
  while (head_ != nullptr) CompleteHead(code);
  untaken_ = nullptr;
}

void SendQueue::CompleteHead(Code code) {
  Send* send = head_;
  head_ = send->next;
  if (slots_->Owns(send->data)) slots_->Give(const_cast<std::byte*>(send->data));
  send->code = code;  // Last: from here on the poster owns it.
}

bool RecvQueue::Post(Recv* recv) {
  if (NeedsSlot(*recv)) {
    if (slots_promised_ == max_slots_) return false;
    ++slots_promised_;
  }
  recv->started = false;
  recv->arrived = 0;
  recv->data = nullptr;
  recv->next = nullptr;
  recv->cookie = 0;
  recv->code = Code::kInProgress;
  (head_ == nullptr ? head_ : tail_->next) = recv;
  tail_ = recv;
  ++posted_;
  return true;
}

void RecvQueue::Release(Recv* recv) {
  slots_->Give(recv->data);
  --slots_promised_;
}

Status RecvQueue::CheckSequence(uint64_t sequence) const {
  const bool possible =
      lanes_ == 1 ? sequence == completed_ : sequence >= completed_ && sequence < posted_ + kMaxSequencesAhead;
  if (possible) return Status();
  return {Code::kProtocol, "broken frame: sequence number is " + std::to_string(sequence) + ", expected " +
                               std::to_string(completed_) + (lanes_ == 1 ? "" : " or a little more")};
}

Status RecvQueue::BeginReceive(const FrameHeader& header, Recv** found) {
  *found = nullptr;
  ANNULUS_RETURN_IF_ERROR(CheckSequence(header.sequence));
  if (!IsPosted(header.sequence)) return Status();
  Recv* recv = head_;
  for (uint64_t sequence = completed_; sequence < header.sequence; ++sequence) recv = recv->next;
  if (recv->started) {
    return {Code::kProtocol, "broken frame: sequence number " + std::to_string(header.sequence) + " came twice"};
  }
  recv->started = true;
  recv->tag = header.tag;
  recv->bytes = header.bytes;
  const size_t most = !NeedsSlot(*recv) ? recv->capacity : std::min<size_t>(recv->capacity, slot_bytes_);
  if (header.bytes > most) {
    return {Code::kProtocol, "a slice of " + std::to_string(header.bytes) + " bytes came where at most " +
                                 std::to_string(most) + " fit"};
  }
  recv->data = NeedsSlot(*recv) ? slots_->Lend() : recv->landing;
  ANNULUS_CHECK(recv->data != nullptr);
  *found = recv;
  return Status();
}

void RecvQueue::MarkDone(Recv* recv, bool* moved) {
  recv->cookie = kDone;
  while (head_ != nullptr && head_->cookie == kDone) {
    CompleteHead(Code::kOk);
    *moved = true;
  }
}

void RecvQueue::FailAll(Code code) {
  while (head_ != nullptr) CompleteHead(code);
}

void RecvQueue::CompleteHead(Code code) {
  Recv* recv = head_;
  head_ = recv->next;
  ++completed_;
  if (code != Code::kOk && NeedsSlot(*recv)) {
    if (recv->data != nullptr) slots_->Give(recv->data);
    --slots_promised_;
  }
  recv->code = code;  // Last: from here on the poster owns it.
}

}  // namespace annulus
