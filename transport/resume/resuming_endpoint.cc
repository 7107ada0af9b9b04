#include "transport/resume/resuming_endpoint.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace annulus {
namespace {

// Time that completed sends have after Close() to get onto the second link.
constexpr Nanoseconds kLinger = 3 * kSecond;

// The first link has no way to keep a short path's slices in order with those that are carried.
Limits OfBoth(Limits limits) {
  limits.short_bytes = 0;
  limits.may_be_made_again = true;
  return limits;
}

}  // namespace

ResumingEndpoint::ResumingEndpoint(std::unique_ptr<Endpoint> first, int rank, GoOn go_on)
    : first_(std::move(first)),
      rest_(first_->shortcuts().continuable),
      rank_(rank),
      go_on_(std::move(go_on)),
      limits_(OfBoth(first_->limits())),
      carriers_(static_cast<size_t>(limits_.send_slots)) {
  ANNULUS_CHECK(rest_ != nullptr && limits_.lands_in.empty());
}

std::string ResumingEndpoint::Describe() const {
  return second_ == nullptr ? first_->Describe() : second_->Describe() + ", in place of " + first_->Describe();
}

EndpointStats ResumingEndpoint::stats() const {
  EndpointStats stats = first_->stats();
  const Endpoint* const second = seen_.load(std::memory_order_acquire);
  if (second == nullptr) return stats;
  const EndpointStats more = second->stats();
  stats.memory.staging += more.memory.staging;
  stats.memory.bookkeeping += more.memory.bookkeeping;
  stats.retransmits += more.retransmits;
  stats.reconnects = 1;
  stats.bytes_sent_again = bytes_sent_again_.load(std::memory_order_relaxed);
  return stats;
}

Status ResumingEndpoint::AcquireSlot(size_t bytes, std::byte** slot) {
  if (!status_.ok()) return status_;
  return lost_.ok() ? first_->AcquireSlot(bytes, slot) : lost_;
}

Status ResumingEndpoint::PostSend(Send* send) {
  if (!status_.ok()) return status_;
  return lost_.ok() ? first_->PostSend(send) : lost_;
}

Status ResumingEndpoint::PostRecv(Recv* recv) {
  if (!status_.ok()) return status_;
  if ((second_ == nullptr && lost_.ok()) || rest_->has_for_next()) return first_->PostRecv(recv);
  return lost_.ok() ? second_->PostRecv(recv) : lost_;
}

void ResumingEndpoint::Release(Recv* recv) {
  second_ == nullptr || rest_->Holds(*recv) ? first_->Release(recv) : second_->Release(recv);
}

// A device that has stopped cannot learn of more memory.
bool ResumingEndpoint::SendsFrom(const std::byte* data, size_t bytes) {
  return second_ == nullptr && first_->shortcuts().in_place->SendsFrom(data, bytes);
}

bool ResumingEndpoint::MayLand(const std::byte* data, size_t bytes) {
  return second_ == nullptr && first_->shortcuts().in_place->MayLand(data, bytes);
}

Status ResumingEndpoint::Progress(bool* moved) {
  if (!status_.ok()) return status_;
  Status status = first_->Progress(moved);
  if (second_ == nullptr && lost_.ok()) {
    if (!status.ok() || !rest_->has_stopped()) return status;
    *moved = true;
    status = BeginSecond();
  }
  if (status.ok() && lost_.ok()) status = ProgressSecond(moved);
  return status.ok() && lost_.ok() ? status : Lose(status, moved);
}

Status ResumingEndpoint::BeginSecond() {
  ANNULUS_RETURN_IF_ERROR(go_on_(rest_->TakeStream(), &second_));
  seen_.store(second_.get(), std::memory_order_release);
  Log(LogLevel::kWarn, rank_, "the link with rank %d goes on, but more slowly, as %s: %s", peer(), Describe().c_str(),
      rest_->WhyItStopped().c_str());
  if (rest_->has_partial()) {
    patch_.recv.capacity = static_cast<uint32_t>(limits_.slot_bytes);
    ANNULUS_RETURN_IF_ERROR(second_->PostRecv(&patch_.recv));
    patch_.posted = true;
  }
  while (Recv* const recv = rest_->TakeReceive()) ANNULUS_RETURN_IF_ERROR(second_->PostRecv(recv));
  return Status();
}

Status ResumingEndpoint::ProgressSecond(bool* moved) {
  ANNULUS_RETURN_IF_ERROR(Carry(moved));
  Status status = second_->Progress(moved);
  *moved |= FinishCarriers();
  ANNULUS_RETURN_IF_ERROR(Carry(moved));
  const Status filled = FillPartial(moved);
  return filled.ok() ? status : filled;
}

Status ResumingEndpoint::Carry(bool* moved) {
  for (size_t i = 0; i < carrying_; ++i) {
    Carrier& carrier = CarrierAt(i);
    if (carrier.source == nullptr || carrier.send.ready == carrier.source->ready) continue;
    carrier.send.ready = carrier.source->ready;
    *moved = true;
  }
  while (carrying_ < carriers_.size()) {
    // Close() takes requests back that have not completed, and must not take others with them.
    const bool only_completed = rest_->owes_completed();
    CarriedSlice slice;
    const Status next = rest_->NextToCarry(only_completed, &slice);
    if (next.would_block()) break;
    ANNULUS_RETURN_IF_ERROR(next);
    Carrier& carrier = CarrierAt(carrying_++);
    carrier.source = slice.send;
    carrier.send = Send();
    carrier.send.tag = slice.tag;
    carrier.send.data = slice.data;
    carrier.send.bytes = slice.bytes;
    carrier.send.ready = slice.send != nullptr ? slice.send->ready : slice.bytes;
    if (slice.again) bytes_sent_again_.fetch_add(slice.bytes, std::memory_order_relaxed);
    // Its error comes from Progress, too.
    if (!second_->PostSend(&carrier.send).ok()) carrier.send.code = Code::kAborted;
    *moved = true;
  }
  return Status();
}

bool ResumingEndpoint::FinishCarriers() {
  bool any = false;
  while (carrying_ > 0 && CarrierAt(0).send.code == Code::kOk) {
    first_carrier_ = (first_carrier_ + 1) % carriers_.size();
    --carrying_;
    rest_->OnCarried();
    any = true;
  }
  return any;
}

Status ResumingEndpoint::FillPartial(bool* moved) {
  if (!patch_.posted) return Status();
  const Recv& patch = patch_.recv;
  Recv* const partial = rest_->partial();
  if (partial != nullptr && patch.started) {
    if (patch.tag != partial->tag || patch.bytes != partial->bytes) {
      return {Code::kProtocol, "rank " + std::to_string(peer()) + " sent another slice than it had begun", peer(), 0};
    }
    if (patch.arrived > partial->arrived) {
      std::memcpy(partial->data + partial->arrived, patch.data + partial->arrived, patch.arrived - partial->arrived);
      rest_->PartialArrived(patch.arrived);
      *moved = true;
    }
  }
  if (rest_->has_partial() || patch.code != Code::kOk) return Status();
  second_->Release(&patch_.recv);
  patch_.posted = false;
  return Status();
}

Status ResumingEndpoint::Lose(const Status& status, bool* moved) {
  if (!status.ok()) {
    lost_ = status;
    *moved = true;
    rest_->FailSends(lost_.code());
    if (second_ != nullptr) (void)second_->Close();
  }
  if (lost_.code() != Code::kProtocol && rest_->has_for_next()) return Status();
  status_ = lost_;
  *moved = true;
  rest_->FailReceives(status_.code());
  return status_;
}

bool ResumingEndpoint::Arm() {
  if (!status_.ok()) return false;
  if (!lost_.ok()) return first_->Arm() && rest_->has_for_next();
  if (second_ == nullptr) return first_->Arm() && !rest_->has_stopped();
  bool moved = false;
  // An error comes from Progress, too.
  const bool carries = first_->Arm() && Carry(&moved).ok();
  return carries && !moved && !rest_->is_copying() && second_->Arm();
}

// What has completed is carried to the end, if there is time. Requests that have not completed are given up at once:
// where one of them is under way on the second link, nothing that has completed is behind it.
bool ResumingEndpoint::Close() {
  const bool over = first_->Close();
  if (second_ == nullptr && lost_.ok() && !over && rest_->has_stopped()) lost_ = BeginSecond();
  if (second_ == nullptr) return over;
  if (linger_end_ == 0) {
    linger_end_ = DeadlineAfter(kLinger);
    if (status_.ok()) status_ = {Code::kAborted, "the link with rank " + std::to_string(peer()) + " was closed"};
  }
  bool moved = false;
  if (rest_->owes_completed() && lost_.ok() && Now() < linger_end_ && ProgressSecond(&moved).ok()) return false;
  return second_->Close() && first_->Close();
}

}  // namespace annulus
