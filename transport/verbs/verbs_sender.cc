#include "transport/verbs/verbs_sender.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace annulus {
namespace {

// What is enough under way for one of several rails: a slice as large as the next one, which is being sent while that
// one waits, or so many bytes of small ones. It is what a port of 100 Gbit/s sends in 10 us, which a completion takes
// to be seen; not measured.
constexpr uint64_t kEnoughBytes = 128 * 1024;

uint64_t Enough(uint64_t bytes) {
  return std::max(kEnoughBytes - std::min(kEnoughBytes, bytes), bytes + kVerbsHeaderBytes);
}

bool IsShort(const Send& send) { return send.bytes <= kVerbsShortBytes; }

}  // namespace

VerbsSender::VerbsSender(int slots, size_t slot_bytes, uint32_t least_part, std::byte* memory,
                         std::vector<VerbsOutbox*> rails, VerbsTarget* target, VerbsReturns* returns, VerbsFault* fault)
    : least_part_(least_part),
      rails_(std::move(rails)),
      target_(target),
      returns_(returns),
      fault_(fault),
      slots_(slots, slot_bytes, memory),
      kept_(slots, rails_.size(), false),
      copies_(rails_[0]->regions().all, rails_[0]->headers()) {
  regions_.all = rails_[0]->regions().all;
  for (const VerbsOutbox* const rail : rails_) regions_.ports |= rail->regions().bit();
}

bool VerbsSender::SendsFrom(const std::byte* data, size_t bytes) {
  if (bytes <= kVerbsShortBytes || bytes > slots_.bytes()) return false;
  // Where no slot is free, nothing is copied instead: it is asked for again.
  const VerbsPromise promise = regions_.all->Promise(regions_.ports, data, bytes, slots_.any_free());
  if (promise.entry == kNoVerbsUse) return false;
  VerbsPromise& place = regions_.promises[regions_.next++ % kMostPromises];
  regions_.all->Break(std::exchange(place, promise));
  return true;
}

void VerbsSender::KeepPromise(VerbsUse use) {
  const auto promise = std::ranges::find(regions_.promises, use, &VerbsPromise::entry);
  if (promise != regions_.promises.end()) regions_.all->Break(std::exchange(*promise, {}));
}

void VerbsSender::DropPromises() {
  for (VerbsPromise& each : regions_.promises) regions_.all->Break(std::exchange(each, {}));
}

Status VerbsSender::Post(Send* send) {
  if (send->bytes > slots_.bytes() || send->ready > send->bytes) {
    return Status::Invalid("a slice of " + std::to_string(send->bytes) + " bytes, " + std::to_string(send->ready) +
                           " of them ready, for a slot of " + std::to_string(slots_.bytes()) + " bytes");
  }
  send->cookie = 0;
  if (!slots_.Reclaim(send->data)) {
    const bool is_large = send->bytes > kVerbsShortBytes && !slots_.Has(send->data);
    const VerbsUse use = is_large ? regions_.all->Acquire(regions_.ports, send->data, send->bytes) : kNoVerbsUse;
    if (use == kNoVerbsUse) {
      // Its place went to another region since SendsFrom said yes, which takes many other promises.
      if (is_large && regions_.all->MayAcquire(regions_.ports, send->data, send->bytes)) return Status::WouldBlock();
      return Status::Invalid("verbs links send slots that AcquireSlot lent, and large slices in registered memory");
    }
    KeepPromise(use);
    send->cookie = uint64_t{use} << kUseShift;
    ++queue_.in_place;
  }
  send->code = Code::kInProgress;
  send->next = nullptr;
  (queue_.first == nullptr ? queue_.first : queue_.last->next) = send;
  queue_.last = send;
  if (queue_.unposted == nullptr) queue_.unposted = send;
  return Status();
}

VerbsOutbox* VerbsSender::FreeRail(uint32_t bytes) const {
  if (rails_.size() == 1) return rails_[0]->CanSend() ? rails_[0] : nullptr;
  const uint64_t most = bytes <= kVerbsShortBytes ? UINT64_MAX : Enough(bytes);
  VerbsOutbox* best = nullptr;
  for (VerbsOutbox* const rail : rails_) {
    if (!rail->CanSend() || rail->bytes_under_way() > most) continue;
    if (best == nullptr || rail->bytes_under_way() < best->bytes_under_way()) best = rail;
  }
  return best;
}

VerbsOutbox* VerbsSender::NextRail() const {
  if (queue_.unposted == nullptr) return nullptr;
  const Send& send = *queue_.unposted;
  const bool whole = send.ready == send.bytes;
  if (part_.begun) {
    const bool ready = whole || send.ready - part_.bytes >= least_part_;
    return ready && part_.rail->CanSend() ? part_.rail : nullptr;
  }
  const bool begins = whole || (send.ready >= least_part_ && !IsForPeer(send));
  const bool ready = begins && (IsShort(send) ? whole : target_->HasSlot());
  return ready && !(kept_.keeps() && kept_.full()) ? FreeRail(send.bytes) : nullptr;
}

// What can be dropped is dropped first, so that there is room for what is kept. What has left whole is completed at
// once.
bool VerbsSender::Advance(bool transmits) {
  const bool any = Complete();
  if (!transmits) return any;
  const bool all = Transmit();
  return Complete() || any || !all;
}

// A device may carry requests out while it takes them, as soft-RoCE does, and what the program has to tell the peer
// waits for that. So it comes back after a heavy chain for each rail.
bool VerbsSender::Transmit() {
  size_t heavy = 0;
  while (!fault_->any() && heavy < rails_.size()) {
    VerbsOutbox* const rail = NextRail();
    if (rail == nullptr) break;
    Send* const send = queue_.unposted;
    if (part_.begun) {
      AddPart(send);
    } else if (IsShort(*send)) {
      AddShort(send, rail);
    } else if (IsForPeer(*send)) {
      AddPlace(send, rail);
    } else {
      AddFirst(send, rail);
    }
    VerbsChain& chain = rail->chain();
    const bool is_heavy = chain.is_heavy();
    heavy += is_heavy ? 1 : 0;
    if (is_heavy || chain.is_full()) chain.Post();
  }
  for (VerbsOutbox* const rail : rails_) rail->chain().Post();
  return heavy < rails_.size();
}

VerbsHeader VerbsSender::HeaderOf(const Send* send, VerbsOutbox* rail, bool is_placed) {
  VerbsHeader header;
  header.released = returns_->released;
  header.releases = returns_->releases;
  header.taken_slices = returns_->taken_slices;
  returns_->Told();
  header.taken = rail->TellTaken();
  if (send == nullptr) return header;
  header.tag = send->tag;
  header.bytes = send->bytes;
  header.sequence = sequence_++;
  header.lent = is_placed || (kept_.keeps() && !slots_.Has(send->data));
  header.placed = is_placed;
  return header;
}

VerbsPiece VerbsSender::PieceOf(const Send& send, size_t begin, size_t bytes, const VerbsOutbox& rail) const {
  VerbsPiece piece = rail.Own(send.data + begin, bytes);
  if (!slots_.Has(send.data)) piece.key = rail.KeysOf(UseOf(send)).local;
  return piece;
}

void VerbsSender::AddShort(Send* send, VerbsOutbox* rail) {
  std::byte* const header = VerbsSlots::HeaderOf(send->data);
  WriteVerbsHeader(HeaderOf(send, rail), header);
  const VerbsPiece all = rail->Own(header, kVerbsHeaderBytes + send->bytes);
  const ibv_send_wr* const request = rail->AddMessage(IBV_WR_SEND_WITH_IMM, {VerbsKind::kShort, 0}, all);
  // What a request carries itself is copied when it is posted.
  const bool copied = (request->send_flags & IBV_SEND_INLINE) != 0;
  if (!copied) rail->chain().AskForCompletion();
  FinishPosting(send, *rail, copied ? kCopied : 0);
}

void VerbsSender::AddPlace(Send* send, VerbsOutbox* rail) {
  const VerbsKeys keys = rail->KeysOf(UseOf(*send));
  std::byte* const header = rail->NextHeader();
  WriteVerbsHeader(HeaderOf(send, rail, true), header);
  WriteVerbsPlace({reinterpret_cast<uint64_t>(send->data), keys.remote}, header + kVerbsHeaderBytes);
  const uint32_t slot = target_->ClaimSlot();
  ibv_send_wr* const request = rail->AddMessage(IBV_WR_RDMA_WRITE_WITH_IMM, {VerbsKind::kSlice, slot},
                                                rail->Own(header, kVerbsHeaderBytes + kVerbsPlaceBytes));
  Aim(request, {.rail = rail, .slot = slot}, 0);
  rail->AddPlaced(send->bytes);
  ++queue_.placed;
  FinishPosting(send, *rail, kPlaced);
}

void VerbsSender::AddFirst(Send* send, VerbsOutbox* rail) {
  part_ = {.rail = rail, .slot = target_->ClaimSlot(), .bytes = send->ready};
  const bool in_slot = slots_.Has(send->data);
  std::byte* const header = in_slot ? VerbsSlots::HeaderOf(send->data) : rail->NextHeader();
  WriteVerbsHeader(HeaderOf(send, rail), header);
  const size_t header_bytes = kVerbsHeaderBytes + (in_slot ? part_.bytes : 0);
  const VerbsPiece data = in_slot ? VerbsPiece() : PieceOf(*send, 0, part_.bytes, *rail);
  ibv_send_wr* const request = rail->AddMessage(IBV_WR_RDMA_WRITE_WITH_IMM, {VerbsKind::kSlice, part_.slot},
                                                rail->Own(header, header_bytes), data);
  Aim(request, part_, 0);
  part_.begun = part_.bytes < send->bytes;
  if (!part_.begun) FinishPosting(send, *rail, 0);
}

void VerbsSender::AddPart(Send* send) {
  const uint32_t begin = part_.bytes;
  part_.bytes = send->ready;
  ibv_send_wr* const request = part_.rail->AddMessage(IBV_WR_RDMA_WRITE_WITH_IMM, {VerbsKind::kPart, part_.bytes},
                                                      PieceOf(*send, begin, part_.bytes - begin, *part_.rail));
  Aim(request, part_, kVerbsHeaderBytes + begin);
  part_.begun = part_.bytes < send->bytes;
  if (!part_.begun) FinishPosting(send, *part_.rail, 0);
}

void VerbsSender::Aim(ibv_send_wr* request, const Part& part, size_t offset) const {
  request->wr.rdma.remote_addr = target_->AddressOf(part.slot, offset);
  request->wr.rdma.rkey = part.rail->remote_key();
  part.rail->chain().AskForCompletion();
}

void VerbsSender::FinishPosting(Send* send, const VerbsOutbox& rail, uint64_t how) {
  send->cookie |= uint64_t{rail.index()} << kRailShift | how | rail.messages();
  queue_.unposted = send->next;
  target_->CountSlice();
  if (kept_.keeps()) kept_.Add({send->tag, send->data, send->bytes, rail.index(), rail.messages()});
}

void VerbsSender::SendUpdate(VerbsOutbox* rail, bool half_of_receives) {
  if (fault_->any() || !rail->CanUpdate(half_of_receives)) return;
  std::byte* const header = rail->NextHeader();
  WriteVerbsHeader(HeaderOf(nullptr, rail), header);
  rail->AddMessage(IBV_WR_SEND_WITH_IMM, {VerbsKind::kUpdate, 0}, rail->Own(header, kVerbsHeaderBytes));
  rail->chain().Post();
}

// A write of nothing, behind all other requests: it needs no receive and touches no memory.
void VerbsSender::Flush() {
  for (VerbsOutbox* const rail : rails_) {
    VerbsChain& chain = rail->chain();
    if (fault_->any() || !chain.has_unsignaled() || chain.Room() == 0) continue;
    Aim(chain.Add(IBV_WR_RDMA_WRITE, {}, {}), {.rail = rail}, 0);
    chain.Post();
  }
}

bool VerbsSender::all_acknowledged() const {
  return std::ranges::all_of(rails_, [](const VerbsOutbox* rail) { return rail->all_acknowledged(); });
}

bool VerbsSender::IsRead(const Send& send) const {
  if ((send.cookie & kPlaced) != 0) return false;
  return (send.cookie & kCopied) != 0 ||
         VerbsReached(RailOf(send).chain().completed(), static_cast<uint32_t>(send.cookie));
}

// A peer that has left may have received what its device did not acknowledge. Until the device here is stopped it may
// send that again, from the owner's memory. Where slices are kept, an owner's memory is, too.
bool VerbsSender::IsDone(const Send& send, bool is_stopped) const {
  if ((send.cookie & kPlaced) != 0) return VerbsReached(target_->taken_slices(), queue_.completed + 1);
  const bool in_slot = slots_.Has(send.data);
  if ((is_stopped || in_slot) && RailOf(send).HasReceived(static_cast<uint32_t>(send.cookie))) return true;
  return IsRead(send) && (in_slot || !kept_.keeps() || IsTaken(kept_.completed()));
}

// Sends complete in order, so only the first one matters. Where slices are kept, one that was written may stay lent:
// one in a GPU's memory does, and others do while no slot is free.
bool VerbsSender::AwaitsWord() const {
  if (queue_.placed > 0) return true;
  return queue_.first != queue_.unposted && !slots_.Has(queue_.first->data) && IsRead(*queue_.first);
}

bool VerbsSender::CanDrop() const {
  if (kept_.completed() == 0 || !IsTaken(0)) return false;
  const VerbsKeptSlice& slice = kept_.at(0);
  return !slots_.Has(slice.data) || VerbsReached(rails_[slice.rail]->chain().completed(), slice.request);
}

void VerbsSender::DropFirst() {
  const std::byte* const data = kept_.at(0).data;
  if (slots_.Has(data)) slots_.Free(data);
  kept_.DropFirst();
}

bool VerbsSender::Complete(bool is_stopped) {
  bool any = false;
  while (queue_.first != queue_.unposted && IsDone(*queue_.first, is_stopped)) {
    Pop(Code::kOk);
    any = true;
  }
  while (CanDrop()) {
    DropFirst();
    any = true;
  }
  return any;
}

bool VerbsSender::CanCopyLent() const {
  if (!kept_.keeps() || queue_.first == queue_.unposted || !slots_.any_free()) return false;
  const Send& send = *queue_.first;
  return !slots_.Has(send.data) && !IsGpus(send) && IsRead(send);
}

void VerbsSender::CopyLent() {
  std::byte* const slot = slots_.Lend();
  ANNULUS_CHECK(slot != nullptr && slots_.Reclaim(slot));
  std::memcpy(slot, queue_.first->data, queue_.first->bytes);
  kept_.at(kept_.completed()).data = slot;
  Pop(Code::kOk);
}

bool VerbsSender::BeginCarrying(uint32_t slices) {
  const uint32_t received = slices - (target_->sent_slices() - kept_.size());
  if (received > kept_.size()) return false;
  DropPromises();
  for (uint32_t i = 0; i < received; ++i) {
    if (kept_.completed() == 0) Pop(Code::kOk);
    DropFirst();
  }
  return true;
}

Status VerbsSender::NextToCarry(bool only_completed, CarriedSlice* slice) {
  if (carried_ < kept_.completed()) {
    const VerbsKeptSlice& kept = kept_.at(carried_++);
    *slice = {kept.tag, kept.data, kept.bytes, nullptr, true};
    return Status();
  }
  if (only_completed) return Status::WouldBlock();
  const Send* send = queue_.first;
  for (uint32_t i = kept_.completed(); i < carried_ && send != nullptr; ++i) send = send->next;
  if (send == nullptr) return Status::WouldBlock();
  const bool begun = carried_ < kept_.size() || (part_.begun && send == queue_.unposted);
  const std::byte* data = send->data;
  if (IsGpus(*send)) {
    if (send->ready < send->bytes) return Status::WouldBlock();
    ANNULUS_RETURN_IF_ERROR(copies_.Copy(UseOf(*send), send->data, send->bytes, &data));
  }
  *slice = {send->tag, data, send->bytes, send, begun};
  ++carried_;
  return Status();
}

void VerbsSender::OnCarried() {
  ANNULUS_CHECK(carried_ > 0);
  --carried_;
  if (kept_.completed() == 0 && IsGpus(*queue_.first)) copies_.DropFirst();
  if (kept_.empty()) {
    part_.begun = false;
    return Pop(Code::kOk);
  }
  if (kept_.completed() == 0) Pop(Code::kOk);
  DropFirst();
}

void VerbsSender::FailAll(Code code) {
  DropPromises();
  copies_.GiveUp();
  while (queue_.first != nullptr) Pop(code);
  kept_.DropUncompleted();
  carried_ = std::min(carried_, kept_.size());
  part_.begun = false;
}

// What is kept is in its slot until it is dropped, unless it was copied.
void VerbsSender::Pop(Code code) {
  Send* const send = queue_.first;
  ++queue_.completed;
  if (send != queue_.unposted && (send->cookie & kPlaced) != 0) {
    RailOf(*send).RemovePlaced(send->bytes);
    --queue_.placed;
  }
  const bool is_kept = kept_.keeps() && send != queue_.unposted && code == Code::kOk;
  queue_.first = send->next;
  if (queue_.unposted == send) queue_.unposted = send->next;
  if (!slots_.Has(send->data)) {
    --queue_.in_place;
    regions_.all->LetGo(UseOf(*send));
  } else if (!is_kept || IsShort(*send)) {
    slots_.Free(send->data);
  }
  if (is_kept) kept_.CompleteNext();
  send->code = code;  // Last: the request may be gone from here on.
}

}  // namespace annulus
