#include "transport/verbs/verbs_connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace annulus {
namespace {

// Idle rounds after which released slots are returned by a message of their own. Until then a slice that goes the other
// way may carry them.
constexpr int kIdleRoundsToReturn = 8;

// Time that a send from its owner's memory, which the peer's device has, waits for the word of the peer's process. A
// process that is in a call gives it within some microseconds; one that computes may take any time, so then the data is
// copied.
constexpr Nanoseconds kLentWait = 100 * kMicrosecond;

// Time without news, while a send waits for the peer's word, after which its device is asked whether it is there:
// nothing else is under way that could fail, and its process may compute.
constexpr Nanoseconds kKeepaliveAfter = kSecond;

size_t SlotsBytes(int slots, size_t slot_bytes) { return static_cast<size_t>(slots) * VerbsSlotStride(slot_bytes); }

size_t LocalBytes(int slots, size_t slot_bytes, size_t rails) {
  return SlotsBytes(slots, slot_bytes) + rails * VerbsRail::LocalBytes(slots);
}

}  // namespace

VerbsConnection::VerbsConnection(const std::vector<VerbsPort>& ports, const VerbsConnectionConfig& config)
    : config_(config),
      written_(config.slot_memory, VerbsRecvSlots::MemoryBytes(config.slots, config.slot_bytes)),
      local_(config.slot_memory, LocalBytes(config.slots, config.slot_bytes, ports.size())),
      target_(config.slots, config.slot_bytes, &fault_),
      recv_slots_(config.slots, config.slot_bytes, written_.data()),
      reads_(ports.size(), &recv_slots_, &fault_),
      rails_(MakeRails(ports)),
      sender_(config.slots, config.slot_bytes, config.least_part, local_.data(), Outboxes(), &target_, &returns_,
              &fault_),
      receiver_(Inboxes(), &recv_slots_, &reads_, &returns_, &fault_),
      lent_(executor()),
      unheard_(executor()) {}

std::vector<std::unique_ptr<VerbsRail>> VerbsConnection::MakeRails(const std::vector<VerbsPort>& ports) {
  const VerbsInbox::Link link{config_.slots, static_cast<int>(ports.size()), &recv_slots_, &reads_, &target_, &returns_,
                              &fault_};
  std::vector<std::unique_ptr<VerbsRail>> rails;
  std::byte* local = local_.data() + SlotsBytes(config_.slots, config_.slot_bytes);
  for (const VerbsPort& port : ports) {
    const auto index = static_cast<uint32_t>(rails.size());
    rails.push_back(std::make_unique<VerbsRail>(index, port, config_.path, link, local, &failure_));
    local += VerbsRail::LocalBytes(config_.slots);
  }
  return rails;
}

std::vector<VerbsOutbox*> VerbsConnection::Outboxes() const {
  std::vector<VerbsOutbox*> all;
  for (const auto& rail : rails_) all.push_back(&rail->outbox());
  return all;
}

std::vector<VerbsInbox*> VerbsConnection::Inboxes() const {
  std::vector<VerbsInbox*> all;
  for (const auto& rail : rails_) all.push_back(&rail->inbox());
  return all;
}

// One that refuses to end is left in its error state, in which it touches no memory either once it has drained.
void VerbsConnection::Stop() {
  for (const auto& rail : rails_) {
    if (rail->pair().Destroy() != 0) (void)rail->pair().Fail();
  }
  if (stopped()) reads_.LetGoOfLandings();
}

bool VerbsConnection::stopped() const {
  return std::ranges::none_of(rails_, [](const auto& rail) { return rail->pair().exists(); });
}

void VerbsConnection::Destroy() {
  for (const auto& rail : rails_) rail->Destroy();
  reads_.LetGoOfLandings();
}

size_t VerbsConnection::MemoryBytes(int slots, size_t slot_bytes, size_t rails) {
  return VerbsMemory::Footprint(VerbsRecvSlots::MemoryBytes(slots, slot_bytes)) +
         VerbsMemory::Footprint(LocalBytes(slots, slot_bytes, rails)) + rails * sizeof(VerbsRail);
}

Status VerbsConnection::Open(VerbsGreeting* greeting) {
  for (size_t i = 0; i < rails_.size(); ++i) {
    ANNULUS_RETURN_IF_ERROR(rails_[i]->Open(&written_, &local_, &greeting->rails[i]));
  }
  if (fault_.any()) return FaultStatus("a peer", Status::kNoRank);
  greeting->num_rails = static_cast<uint32_t>(rails_.size());
  greeting->slots = static_cast<uint32_t>(config_.slots);
  greeting->slot_bytes = config_.slot_bytes;
  greeting->address = reinterpret_cast<uint64_t>(written_.data());
  return Status();
}

Status VerbsConnection::Connect(const VerbsGreeting& peer) {
  target_.Reach(peer.address);
  for (size_t i = 0; i < rails_.size(); ++i) ANNULUS_RETURN_IF_ERROR(rails_[i]->Connect(peer.rails[i]));
  if (AllAnswer()) sender_.LetPeerRead(config_.least_read);
  return Status();
}

bool VerbsConnection::AllRead() const {
  return std::ranges::all_of(rails_, [](const auto& rail) { return rail->pair().reads() > 0; });
}

bool VerbsConnection::AllAnswer() const {
  return std::ranges::all_of(rails_, [](const auto& rail) { return rail->pair().answers() > 0; });
}

bool VerbsConnection::MayLand(const std::byte* data, size_t bytes) {
  return config_.least_read > 0 && bytes >= config_.least_read && AllRead() && rails_[0]->MayAcquire(data, bytes);
}

void VerbsConnection::FillFarewell(VerbsFarewell* farewell) const {
  farewell->taken_slices = returns_.taken_slices;
  for (size_t i = 0; i < rails_.size(); ++i) {
    farewell->rails[i] = {rails_[i]->outbox().acknowledged(), rails_[i]->inbox().received()};
  }
}

void VerbsConnection::OnFarewell(const VerbsFarewell& farewell) {
  target_.OnTaken(farewell.taken_slices);
  for (size_t i = 0; i < rails_.size(); ++i) {
    rails_[i]->outbox().OnFarewell(farewell.rails[i].received);
    rails_[i]->inbox().OnFarewell(farewell.rails[i].sent);
  }
}

bool VerbsConnection::HasArrived(const VerbsFarewell& farewell) const {
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (!VerbsReached(rails_[i]->inbox().received(), farewell.rails[i].sent)) return false;
  }
  return true;
}

void VerbsConnection::Drain() {
  bool drains = false;
  for (const auto& rail : rails_) drains |= rail->pair().Fail();
  if (drains) failure_.drain_end = DeadlineAfter(kVerbsDraining);
}

void VerbsConnection::DrainOthers() {
  if (std::exchange(failure_.others_drain, true)) return;
  for (const auto& rail : rails_) {
    if (rail.get() != failure_.rail) (void)rail->pair().Fail();
  }
}

bool VerbsConnection::Drained() const {
  const auto is_drained = [](const auto& rail) { return rail->inbox().drained() || rail->hub().failed(); };
  return std::ranges::all_of(rails_, is_drained) || Now() >= failure_.drain_end;
}

bool VerbsConnection::StopForGood() {
  PollAll();
  for (const auto& rail : rails_) {
    const int error = rail->pair().Destroy();
    if (error == 0) continue;
    fault_.Set("ending a queue pair", 0, error);
    return false;
  }
  PollAll();
  for (const auto& rail : rails_) rail->Forget();
  reads_.LetGoOfLandings();
  receiver_.EndArrivals();
  return true;
}

bool VerbsConnection::Move(bool sends) {
  for (const auto& rail : rails_) rail->hub().Poll();
  rails_[0]->outbox().regions().all->SweepIfDue();
  bool changed = receiver_.Advance();
  const bool usable = sends && !Broken();
  PostReceives();
  if (usable) receiver_.Read();
  changed |= sender_.Advance(usable);
  if (usable) ReturnCredits(!changed);
  if (usable) KeepAlive(changed);
  return changed || CopyLent();
}

bool VerbsConnection::Wait::IsOver(bool waits, Nanoseconds limit) {
  if (!waits) {
    since = 0;
    return false;
  }
  const Nanoseconds now = Now();
  if (since == 0) since = now;
  if (now - since < limit) return false;
  since = 0;
  return true;
}

void VerbsConnection::KeepAlive(bool changed) {
  if (!unheard_.IsOver(!changed && sender_.AwaitsWord(), kKeepaliveAfter)) return;
  for (const auto& rail : rails_) rail->KeepAlive(target_.AddressOf(0, 0));
}

bool VerbsConnection::CopyLent() {
  if (!lent_.IsOver(sender_.CanCopyLent(), kLentWait)) return false;
  sender_.CopyLent();
  return true;
}

void VerbsConnection::PollAll() {
  for (const auto& rail : rails_) {
    while (rail->hub().Poll() > 0) {
    }
  }
}

// What comes once a connection is broken is given back at once.
void VerbsConnection::PostReceives() {
  if (Broken()) return;
  for (const auto& rail : rails_) rail->inbox().PostReceives();
}

void VerbsConnection::ReturnCredits(bool idle) {
  idle_rounds_ = idle ? idle_rounds_ + 1 : 0;
  for (const auto& rail : rails_) {
    if (rail->outbox().receives_due()) sender_.SendUpdate(&rail->outbox(), true);
  }
  const bool slots_due =
      returns_.untold_slots > 0 && (2 * returns_.untold_slots >= config_.slots || idle_rounds_ >= kIdleRoundsToReturn);
  const bool lent_due = returns_.untold_lent && (idle_rounds_ >= kIdleRoundsToReturn || !receiver_.has_receives());
  if (!slots_due && !lent_due) return;
  // Behind large slices the update would wait for them, on a slow rail for long.
  VerbsOutbox* best = nullptr;
  for (size_t i = 0; i < rails_.size(); ++i) {
    VerbsOutbox& outbox = rails_[(returns_.last_rail + i) % rails_.size()]->outbox();
    if (!outbox.CanUpdate(false)) continue;
    if (best == nullptr || outbox.bytes_under_way() < best->bytes_under_way()) best = &outbox;
  }
  if (best != nullptr) sender_.SendUpdate(best, false);
}

bool VerbsConnection::Arm(bool sends) {
  idle_rounds_ = kIdleRoundsToReturn;
  PostReceives();
  if (sends && !Broken()) ReturnCredits(true);
  if (HasWork(sends)) return false;
  for (const auto& rail : rails_) {
    if (!rail->hub().Arm()) return false;
  }
  if (HasWork(sends)) return false;
  if (sender_.CanCopyLent()) lent_.alarm.Set(kLentWait);
  if (sends && !Broken() && sender_.AwaitsWord()) unheard_.alarm.Set(kKeepaliveAfter);
  return true;
}

bool VerbsConnection::CauseIsKnown() const {
  if (!Broken() || failure_.status != IBV_WC_WR_FLUSH_ERR) return Broken();
  const VerbsOutbox& outbox = failure_.rail->outbox();
  const bool is_over = outbox.chain().finished() && !reads_.reads_on(outbox.index()) && !failure_.rail->keeps_alive();
  return is_over || Now() >= failure_.drain_end;
}

std::string VerbsConnection::CountsText(size_t rail) const {
  const VerbsOutbox& outbox = rails_[rail]->outbox();
  const VerbsReads::Counts& reads = reads_.counts(rail);
  std::string text = device(rail).Describe() + ": " + std::to_string(outbox.messages()) + " messages were sent and " +
                     std::to_string(rails_[rail]->inbox().received()) + " received, " +
                     std::to_string(outbox.written_bytes()) + " bytes written to its slots";
  if (reads.slices == 0) return text;
  return text + ", " + std::to_string(reads.slices) + " slices of " + std::to_string(reads.bytes) +
         " bytes were read from its memory, " + std::to_string(reads.landed_bytes) +
         " bytes of them straight into this rank's";
}

// The device is named where there are several: whoever shows this has named them all.
std::string VerbsConnection::FailureText() const {
  std::string text = VerbsStatusText(failure_.status);
  if (failure_.rail != nullptr) text += failure_.rail->hub().trouble();
  if (failure_.vendor_error != 0) text += "; vendor error " + std::to_string(failure_.vendor_error);
  if (rails_.size() > 1 && failure_.rail != nullptr) text += ", on " + failure_.rail->hub().device().Describe();
  return text;
}

std::string VerbsConnection::DevicesText() const {
  if (const VerbsRail* const failed = FailedRail(); failed != nullptr) return failed->hub().device().Describe();
  std::string text;
  for (const auto& rail : rails_) text += (text.empty() ? "" : " and ") + rail->hub().device().Describe();
  return text;
}

std::string VerbsConnection::TroubleText() const {
  const VerbsRail* const failed = FailedRail();
  return (failed != nullptr ? *failed : *rails_[0]).hub().trouble();
}

Status VerbsConnection::FaultStatus(const std::string& name, int peer) const {
  if (fault_.any() && fault_.os_errno == 0) {
    return {Code::kProtocol,
            "verbs: " + name + " sent " + fault_.what + " " + std::to_string(fault_.value) + ", which is not allowed",
            peer, 0};
  }
  const char* const what = fault_.any() ? fault_.what : "waiting for completions";
  const int error = fault_.any() ? fault_.os_errno : EIO;
  return {Code::kSystem,
          std::string("verbs: ") + what + " for " + name + " on " + DevicesText() + ": " + std::strerror(error) +
              TroubleText(),
          Status::kNoRank, error};
}

}  // namespace annulus
