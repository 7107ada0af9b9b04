#include "transport/shm/shm_endpoint.h"

#include <algorithm>
#include <utility>

#include "transport/security/door.h"

namespace annulus {
namespace {

// Longest short slice that is always copied with plain stores, in bytes. How a longer one is copied depends on the
// peer's distance.
constexpr uint32_t kLongShort = ShmSender::kLeastInTurn - 1;

int SideOf(int rank, int peer) { return rank < peer ? 0 : 1; }

}  // namespace

ShmEndpoint::ShmEndpoint(std::shared_ptr<ShmMapping> mapping, int rank, int peer, StreamSocket socket,
                         SlotStores stores, const MemoryRegistry* memory, KernelCopies copies, DeviceReads devices)
    : mapping_(std::move(mapping)),
      rank_(rank),
      peer_(peer),
      bell_(std::move(socket), own_end(), peer_end()),
      memory_{
          {memory, [this](const ShmNotice& notice, int fd) { return bell_.Send(notice, fd); }},
          {ExportsFor(devices),
           [this](const ShmNotice& notice, const SharedDeviceMemory* shared) {
             return shared != nullptr ? bell_.Send(notice, *shared) : bell_.Send(notice, -1);
           }},
          {ExportsFor(devices), mapping_->slot_memory(), mapping_->slots(), peer,
           [this](uint64_t region) {
             return bell_.Send({ShmNotice::kOpened, region, 0}, -1);
           }},
          ShmPeerRegions([this](const ShmNotice& notice, const SharedDeviceMemory* shared) {
            return OnDeviceNotice(notice, shared);
          }),
      },
      peer_memory_(copies == KernelCopies::kOff || !bell_.is_peer_own_user() ? 0 : bell_.peer_process(),
                   peer_end()->mapping.load(std::memory_order_acquire) + ShmMapping::kNonceOffset, mapping_->nonce(),
                   own_end()),
      sender_(mapping_->direction(SideOf(rank, peer)), &memory_.own_regions, &memory_.own_devices),
      lender_(&sender_, stores, rank, peer),
      receiver_(
          mapping_->direction(SideOf(peer, rank)), &memory_.peer_regions, [this] { return ReadSocket(); },
          &peer_memory_, mapping_->slot_memory(), &memory_.peer_devices) {
  limits_.slot_bytes = mapping_->layout().slot_bytes;
  limits_.send_slots = limits_.recv_slots = static_cast<int>(mapping_->layout().slots);
  limits_.in_place = {MemoryKind::kHost};
  if (memory_.own_devices.is_on()) limits_.in_place = {MemoryKind::kHost, MemoryKind::kDevice};
  if (peer_memory_.works()) limits_.may_land_in = {MemoryKind::kHost};
  own_end()->reads.store(peer_memory_.works() ? 1 : 0, std::memory_order_release);
  limits_.shares_memory = true;
  limits_.short_bytes = static_cast<uint32_t>(limits_.slot_bytes);
}

const DeviceExports* ShmEndpoint::ExportsFor(DeviceReads devices) const {
  const SlotMemory* const memory = mapping_->slot_memory();
  return devices == DeviceReads::kOff || memory == nullptr ? nullptr : memory->exports();
}

bool ShmEndpoint::OnDeviceNotice(const ShmNotice& notice, const SharedDeviceMemory* shared) {
  if (shared != nullptr) return memory_.peer_devices.OnShared(notice, *shared);
  if (notice.kind == ShmNotice::kOpened) return memory_.own_devices.OnOpened(notice.region);
  return memory_.peer_devices.OnForgotten(notice.region);
}

std::string ShmEndpoint::PeerText() const {
  std::string text = "rank " + std::to_string(peer_);
  if (bell_.peer_process() > 0) text += " (process " + std::to_string(bell_.peer_process()) + ")";
  return text;
}

std::string ShmEndpoint::Describe() const {
  return "shared memory from rank " + std::to_string(rank_) + " to " + PeerText() + ", each way " +
         std::to_string(limits_.send_slots) + " slots of " + std::to_string(limits_.slot_bytes) + " bytes";
}

// Each end counts the direction in which it sends. The lower rank, which created the file, also counts what belongs
// to both.
EndpointStats ShmEndpoint::stats() const {
  const int side = SideOf(rank_, peer_);
  const ShmLayout& layout = mapping_->layout();
  EndpointStats stats;
  LinkMemory& memory = stats.memory;
  memory.staging = layout.slots * layout.slot_stride;
  memory.bookkeeping = receiver_.cell_bytes();
  const size_t half = (layout.rings_end - layout.ring_offset[0]) / 2;
  memory.bookkeeping += side == 0 ? layout.rings_end - half : half;
  memory.mapped = memory_.peer_regions.mapped_bytes();
  return stats;
}

void ShmEndpoint::ShareCache(size_t peers) {
  // More than the caches that a processor has for itself, and about its part of the one that eight share.
  constexpr size_t kBytesInTurn = 4 * 1024 * 1024;
  sender_.LimitTurns(kBytesInTurn / (peers * static_cast<size_t>(limits_.send_slots)));
}

Status ShmEndpoint::AcquireSlot(size_t bytes, std::byte** slot) {
  if (!status_.ok()) return status_;
  std::byte* const free = lender_.Lend(std::min(bytes, limits_.slot_bytes), &fault_);
  if (free != nullptr) {
    *slot = free;
    return Status();
  }
  // Slots at a peer that is gone never come back. The link itself ends once everything that arrived is delivered.
  return peer_gone_ ? Lost() : Status::WouldBlock();
}

Status ShmEndpoint::PostSend(Send* send) {
  if (!status_.ok()) return status_;
  const Status posted = sender_.Post(send, &fault_);
  if (posted.would_block() && peer_gone_) return Lost();  // As in AcquireSlot.
  if (!posted.ok()) return posted;
  short_.is_blocked = false;  // The sender waits instead.
  lender_.Posted(send->bytes);
  bell_.Owe(sender_.Publish(&fault_));
  return Status();
}

// Sends like a slice of the pipeline: its slot serves to measure the peer's distance, and is filled as that distance
// requires.
bool ShmEndpoint::SendLongShort(const Tag& tag, const std::byte* data, uint32_t bytes) {
  if (!sender_.MayPublish(&fault_)) return false;
  std::byte* const slot = lender_.Lend(bytes, &fault_);
  if (slot == nullptr) return false;
  lender_.Fill(slot, data, bytes);
  lender_.Posted(bytes, /*may_be_lent=*/bytes >= ShmSender::kLeastLent);
  sender_.PublishLent(tag, slot, bytes);
  sender_.ExpectMore(lender_.streams() ? 0 : bytes, lender_.placing());
  return true;
}

Status ShmEndpoint::SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes) {
  if (!status_.ok()) return status_;
  short_.is_blocked =
      bytes > kLongShort ? !SendLongShort(tag, data, bytes) : !sender_.PublishShort(tag, data, bytes, &fault_);
  if (short_.is_blocked) {
    short_.is_blocked = !peer_gone_;
    return peer_gone_ ? Lost() : Status::WouldBlock();  // As in AcquireSlot.
  }
  bell_.Owe();
  return Status();
}

bool ShmEndpoint::PopInto(std::byte* to) {
  bool told = false;
  const bool taken = receiver_.PopLent(to, &told);
  if (taken) sender_.PrepareNext();
  bell_.Owe(told);
  return taken;
}

bool ShmEndpoint::MayLend() const {
  return limits_.may_land_in.Has(MemoryKind::kHost) && peer_end()->reads.load(std::memory_order_acquire) != 0 &&
         lender_.MayLend();
}

bool ShmEndpoint::Lends(const std::byte* data, size_t bytes) {
  if (bytes < ShmSender::kLeastLent || !status_.ok() || peer_gone_) return false;
  if (!limits_.may_land_in.Has(MemoryKind::kHost)) return false;
  return peer_end()->reads.load(std::memory_order_acquire) != 0 && lender_.PrefersLoan(*peer_end()) &&
         sender_.Lends(data, bytes);
}

Status ShmEndpoint::PostRecv(Recv* recv) {
  if (!status_.ok()) return status_;
  if (!receiver_.Post(recv)) return Status::WouldBlock();
  short_.awaits = false;  // The receiver waits instead.
  return Status();
}

void ShmEndpoint::Release(Recv* recv) {
  const bool in_place = recv->read_only;
  if (in_place) {
    // A sender that gives up says so before its user gets the memory back. So whoever has read what the user wrote
    // afterwards sees that here: this is the reader's half of a sequence lock. It comes before the return, because the
    // sender is done with the slot after that.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (bell_.PeersFarewell(std::memory_order_relaxed) != 0) recv->code = Code::kPeerLost;
  }
  bell_.Owe(receiver_.Release(recv));
  // This may be the last thing that both the sender and this end do, and then nothing would ring the bell later.
  if (in_place && status_.ok()) RingIfOwed();
}

Status ShmEndpoint::Progress(bool* moved) {
  if (!status_.ok()) return status_;
  if (bell_.asleep()) bell_.Wake();
  memory_.peer_devices.Advance();
  memory_.own_devices.Advance();
  bool freed = false;
  bool changed = receiver_.Advance(&freed, &fault_);
  if (!peer_memory_.works() && own_end()->reads.load(std::memory_order_relaxed) != 0)
    own_end()->reads.store(0, std::memory_order_release);  // Not to be lent more for nothing.
  bell_.Owe(freed);
  if (!sender_.idle()) bell_.Owe(sender_.Publish(&fault_));
  RingIfOwed();
  if (!sender_.idle()) {
    bool copied = false;
    changed |= sender_.Complete(&copied, &fault_);
    bell_.Owe(copied);
    RingIfOwed();
  }
  if (fault_.field != nullptr) {
    *moved = true;
    End(Broken(), Code::kProtocol);
    return status_;
  }
  if (changed) {
    *moved = true;
    return Status();
  }
  if (!peer_gone_ && (bell_.rung() || bell_.LookDue())) {
    ReadSocket();
    *moved |= peer_gone_;  // Whoever waits for room asks again, and is told.
  }
  return peer_gone_ ? ProgressWithoutPeer(moved) : Status();
}

// What the peer has not taken by now it never will, also while slices of its own still wait for receives.
Status ShmEndpoint::ProgressWithoutPeer(bool* moved) {
  const bool drained = Drained();
  if (!drained && !HasLostSends()) return Status();
  *moved = true;
  // The peer may have given back what it had read after the look at the sends above, and before it left.
  bool copied = false;
  sender_.LookAtOnce();
  if (!sender_.idle() && sender_.Complete(&copied, &fault_)) return Status();
  if (drained) {
    End(Lost(), Code::kPeerLost);
  } else {
    FailSends(Code::kPeerLost, Code::kPeerLost);
  }
  return status_;
}

bool ShmEndpoint::ReadSocket() {
  if (!bell_.Drain(&memory_.peer_regions)) peer_gone_ = true;
  return !memory_.peer_regions.HasFault(&fault_) && !peer_gone_ && bell_.rung();
}

bool ShmEndpoint::HasWork() {
  const bool returned = sender_.CollectReturns(&fault_);
  if (short_.is_blocked && (peer_gone_ || sender_.HasRoomForShort(&fault_))) return true;
  if (short_.awaits && receiver_.HasSlice()) return true;
  if (returned || receiver_.HasWork() || sender_.HasWork(&fault_) || fault_.field != nullptr) return true;
  return Drained() || HasLostSends();
}

bool ShmEndpoint::Arm() {
  if (!status_.ok()) return false;
  RingIfOwed();
  if (peer_gone_) return !HasWork();  // Nobody is left to ring.
  bell_.Sleep();
  if (HasWork()) {  // Checked only after Sleep(), see ShmBell.
    bell_.Wake();
    return false;
  }
  bell_.Wait();
  return true;
}

// Published slices lie in memory that the peer has too, so there is nothing to wait for.
bool ShmEndpoint::Close() {
  if (!status_.ok()) return true;
  End({Code::kAborted, "the shared memory link to rank " + std::to_string(peer_) + " is closed", peer_, 0}, Code::kOk);
  return true;
}

void ShmEndpoint::End(Status status, Code farewell) {
  status_ = std::move(status);
  FailSends(status_.code(), farewell);
  receiver_.FailAll(status_.code());
  bell_.Shut();
}

void ShmEndpoint::FailSends(Code code, Code farewell) {
  bell_.SayFarewell(1 + static_cast<uint32_t>(farewell));  // Before the memory of sends in place changes, see Release.
  sender_.FailAll(code);
}

Status ShmEndpoint::Broken() const {
  if (fault_.os_errno != 0) {  // This rank's system, not the peer.
    const std::string what = std::string(fault_.field) + " of " + PeerText();
    if (IsOutOfDescriptors(fault_.os_errno)) return OutOfDescriptors(rank_, what, fault_.os_errno);
    const Status refused = Status::System("shared memory: " + what, fault_.os_errno);
    return {refused.code(), refused.message(), rank_, fault_.os_errno};
  }
  return {Code::kProtocol,
          "shared memory: field '" + std::string(fault_.field) + "' from " + PeerText() + " is " +
              std::to_string(fault_.value) + ", which is not allowed (limit " + std::to_string(fault_.limit) + ")",
          peer_, 0};
}

Status ShmEndpoint::Lost() const {
  const uint32_t farewell = bell_.PeersFarewell(std::memory_order_acquire);
  std::string text = PeerText();
  if (farewell == 0) {
    text += " died: its end of the shared memory link is gone";
  } else if (farewell == 1 + static_cast<uint32_t>(Code::kOk)) {
    text += " closed its shared memory link";
  } else {
    text += " gave up its shared memory link: " + std::string(CodeName(static_cast<Code>(farewell - 1)));
  }
  return {Code::kPeerLost, std::move(text), peer_, 0};
}

}  // namespace annulus
