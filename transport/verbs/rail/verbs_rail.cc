#include "transport/verbs/rail/verbs_rail.h"

namespace annulus {
namespace {

// Whether this end or its device is to blame, and not the peer. A message that is too long for a receive comes from the
// peer.
bool IsOwnFailure(ibv_wc_status status, bool is_receive) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR:
      return !is_receive;
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_EEC_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_FATAL_ERR:
      return true;
    default:
      return false;
  }
}

}  // namespace

VerbsRail::VerbsRail(uint32_t index, const VerbsPort& port, const VerbsPath& path, const VerbsInbox::Link& link,
                     std::byte* local, VerbsFailure* failure)
    : hub_(port.hub),
      regions_(port.regions),
      number_(hub_->Add(this)),
      failure_(failure),
      reads_(link.reads),
      fault_(link.fault),
      pair_(hub_.get(), number_, VerbsQueueDepth(link.slots), path),
      outbox_(index, link.slots, local, {regions_.get(), port.index}, &pair_, link.fault),
      inbox_(link, local + VerbsOutbox::HeadersBytes(link.slots), &pair_, &outbox_) {
  reads_->Attach(index, &pair_, outbox_.regions());
}

Status VerbsRail::Open(VerbsMemory* written, VerbsMemory* local, VerbsRailGreeting* greeting) {
  ibv_mr* for_peer = nullptr;
  ibv_mr* own = nullptr;
  ANNULUS_RETURN_IF_ERROR(written->Register(hub_, true, &for_peer));
  ANNULUS_RETURN_IF_ERROR(local->Register(hub_, false, &own));
  ANNULUS_RETURN_IF_ERROR(pair_.Create());
  outbox_.SetKey(own->lkey);
  inbox_.PostCells(own->lkey);
  pair_.Greet(greeting);
  greeting->key = for_peer->rkey;
  slots_key_ = for_peer->lkey;
  return Status();
}

Status VerbsRail::Connect(const VerbsRailGreeting& peer) {
  outbox_.Reach(peer.key);
  ANNULUS_RETURN_IF_ERROR(pair_.Connect(peer));
  reads_->Allow(outbox_.index(), slots_key_, pair_.reads());
  return Status();
}

void VerbsRail::KeepAlive(uint64_t address) {
  if (keeps_alive_ || !pair_.exists()) return;
  keeps_alive_ = true;
  const int error = pair_.PostKeepalive(address, outbox_.remote_key());
  if (error != 0) fault_->Set("posting a keepalive", 0, error);
}

void VerbsRail::OnCompletion(const ibv_wc& completion, VerbsRequest request, uint32_t value) {
  if (request == VerbsRequest::kKeepalive) keeps_alive_ = false;
  if (completion.status == IBV_WC_SUCCESS) {
    if (request == VerbsRequest::kKeepalive) return;
    if (request == VerbsRequest::kReceive) return inbox_.OnCompletion(completion, value);
    if (request == VerbsRequest::kRead) return reads_->OnCompletion(value);
    return outbox_.chain().OnCompletion(value);
  }
  // The failure that broke the connection counts, and not what was flushed because of it, in whatever order they come.
  if (!failure_->any() && failure_->drain_end == 0) failure_->drain_end = DeadlineAfter(kVerbsDraining);
  if (!failure_->any() || failure_->status == IBV_WC_WR_FLUSH_ERR) {
    failure_->status = completion.status;
    failure_->here = IsOwnFailure(completion.status, request == VerbsRequest::kReceive);
    failure_->vendor_error = completion.vendor_err;
    failure_->rail = this;
  }
  switch (request) {
    case VerbsRequest::kReceive:
      inbox_.OnFailure();
      break;
    case VerbsRequest::kRead:
      reads_->OnFailure(value);
      break;
    case VerbsRequest::kMessage:
      outbox_.chain().OnFailure(value);
      break;
    case VerbsRequest::kKeepalive:
      break;
  }
  outbox_.chain().PostMarker();
}

}  // namespace annulus
