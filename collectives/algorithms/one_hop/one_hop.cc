#include "collectives/algorithms/one_hop/one_hop.h"

#include <algorithm>
#include <cstring>

namespace annulus {

OneHop::OneHop(int rank, int nranks, const Links* links)
    : rank_(rank), nranks_(nranks), short_(rank, nranks, links), fold_(rank, nranks) {
  for (int k = 1; k < nranks; ++k) {
    Endpoint* const endpoint = links->At((rank + k) % nranks, 0);
    links_.push_back(endpoint);
    posts_.emplace_back(endpoint);
  }
  endpoints_.reserve(links_.size());
}

size_t OneHop::MemoryBytes(int nranks) {
  return sizeof(OneHop) +
         static_cast<size_t>(nranks) * (sizeof(HopPeer) + 2 * sizeof(Endpoint*) + ShortHop::PeerBytes());
}

bool OneHop::UsesShortPath(size_t largest) const {
  // An agreement is no call that a user could repeat, and only what can be repeated is worth the short path.
  if (work_->call.kind == CollectiveKind::kAgreement || short_.most_bytes() == 0) return false;
  return largest <= short_.most_bytes() && work_->segments == nullptr && work_->custom.user == nullptr &&
         !work_->custom.scales && work_->input.queue == nullptr && work_->output.queue == nullptr;
}

void OneHop::Start(const ScheduleParams& params, const Work* work) {
  work_ = work;
  schedule_ = OneHopSchedule(params, 0);
  has_output_ = done_ = false;
  if (!schedule_.At(0, &own_step_)) own_step_ = Step();
  is_short_ = UsesShortPath(UseLinks());
  StartFold(params);
  if (!is_short_) return StartPosts();
  short_.Start(work, schedule_);
}

size_t OneHop::UseLinks() {
  endpoints_.clear();
  size_t largest = 0;
  for (size_t k = 1; k <= links_.size(); ++k) {
    Step send;
    Step receive;
    const bool sends = schedule_.At(2 * k, &send);
    const bool receives = schedule_.At(2 * (links_.size() + 1 - k) + 1, &receive);
    if (sends || receives) endpoints_.push_back(links_[k - 1]);
    largest = std::max({largest, sends ? send.bytes : 0, receives ? receive.bytes : 0});
  }
  return largest;
}

void OneHop::StartFold(const ScheduleParams& params) {
  const bool folds = Reduces(params.kind) && (params.kind != CollectiveKind::kReduce || rank_ == params.root);
  // Two operands give the same bits in any order, so all that this rank folds can be folded alike.
  const bool at_once =
      folds && nranks_ == 2 && work_->custom.user == nullptr && params.kind != CollectiveKind::kAllreduceGroup;
  if (at_once) {
    fold_.StartWhole(OwnPart(params), work_);
  } else {
    fold_.Start(&schedule_, {2 * static_cast<size_t>(nranks_), folds ? nranks_ : 0}, work_);
  }
}

// The part of the input that this rank reduces.
Part OneHop::OwnPart(const ScheduleParams& params) const {
  if (params.kind == CollectiveKind::kReduceScatterv) return params.input_parts[rank_];
  const bool is_one_of_many = params.kind == CollectiveKind::kReduceScatter;
  return {is_one_of_many ? static_cast<size_t>(rank_) * params.count : 0, params.count};
}

void OneHop::StartAgain() {
  has_output_ = done_ = false;
  fold_.StartAgain();
  short_.StartAgain();
}

bool OneHop::FinishesAtOnce() {
  bool moved = false;
  return AdvanceShort(&moved).ok() && done_;
}

Status OneHop::Progress(bool* moved) {
  if (!is_short_) return Runner::Progress(moved);
  if (!has_output_) ANNULUS_RETURN_IF_ERROR(AdvanceShort(moved));
  if (done_) return Status();
  ANNULUS_RETURN_IF_ERROR(ProgressLinks(moved));
  // The last bytes may just have left, and nothing else would report it.
  if (has_output_) done_ = short_.Flush();
  return Status();
}

Status OneHop::AdvanceShort(bool* moved) {
  ANNULUS_RETURN_IF_ERROR(short_.Progress(moved));
  if (!short_.done()) return Status();
  ANNULUS_RETURN_IF_ERROR(OnShortArrivals(moved));
  short_.PopAll();
  has_output_ = true;
  done_ = short_.Flush();
  return Status();
}

// The short path is for host memory, and one buffer each way. All that is sent has been copied, so the output may be
// where the input is.
Status OneHop::OnShortArrivals(bool* moved) {
  if (fold_.is_single()) {
    fold_.SetArrival(0, short_.data(0));
    fold_.FoldAll();
    return Status();
  }
  if (Reduces(work_->call.kind)) {
    for (size_t k = 0; k < links_.size(); ++k) fold_.SetArrival(k, short_.data(k));
    return fold_.Advance(moved);
  }
  if (own_step_.bytes > 0) CopyOwn();
  short_.StoreAll();
  return Status();
}

void OneHop::CopyOwn() const {
  const std::byte* const from = work_->input.data + own_step_.input_offset;
  std::byte* const to = work_->output.data + own_step_.output_offset;
  if (from != to) std::memcpy(to, from, own_step_.bytes);
}

void OneHop::StartPosts() {
  const int n = nranks_;
  own_.Reset(own_step_.bytes);
  for (int k = 1; k < n; ++k) {
    Step send;
    Step receive;
    // Steps 2k send to the rank k ahead, steps 2j + 1 receive from the rank j behind.
    const bool sends = schedule_.At(2 * static_cast<size_t>(k), &send);
    const bool receives = schedule_.At(2 * static_cast<size_t>(n - k) + 1, &receive);
    posts_[k - 1].Start(work_, sends ? &send : nullptr, receives ? &receive : nullptr);
  }
}

Status OneHop::Advance(bool* moved) {
  if (done_) return Status();
  ANNULUS_RETURN_IF_ERROR(StoreOwn(moved));
  bool exchanged = own_.done();
  for (HopPeer& peer : posts_) {
    ANNULUS_RETURN_IF_ERROR(peer.Send(moved));
    ANNULUS_RETURN_IF_ERROR(peer.Receive(moved));
    exchanged &= peer.sent() && peer.came();
  }
  // Only now: sends may read the input, which may be the output.
  if (!exchanged) return Status();
  for (size_t k = 0; k < posts_.size(); ++k) fold_.SetArrival(k, posts_[k].data());
  ANNULUS_RETURN_IF_ERROR(fold_.Advance(moved));
  if (!fold_.done()) return Status();
  for (HopPeer& peer : posts_) ANNULUS_RETURN_IF_ERROR(peer.Release());
  done_ = *moved = true;
  return Status();
}

Status OneHop::StoreOwn(bool* moved) {
  const auto submit = [this](size_t begin, size_t* end, Submission* piece) {
    const Work::Place input = work_->InputAt(own_step_.input_offset + begin);
    const Work::Place output = work_->OutputAt(own_step_.output_offset + begin);
    *end = begin + std::min({*end - begin, input.bytes, output.bytes});
    if (output.data == input.data) return Status();
    SliceOp op;
    op.dst[0] = const_cast<std::byte*>(output.data);
    op.inline_src[0] = input.data;
    op.num_sources = 1;
    op.count = (*end - begin) / work_->element_bytes;
    op.type = work_->type;
    return piece->Submit(QueueFor(output.queue, input.queue), op);
  };
  return own_.done() ? Status() : own_.Advance(submit, moved);
}

int OneHop::AwaitedPeer() const {
  if (is_short_) return short_.AwaitedPeer();
  const auto peer_of = [this](size_t k) { return (rank_ + 1 + static_cast<int>(k)) % nranks_; };
  for (size_t k = 0; k < posts_.size(); ++k) {
    if (!posts_[k].came()) return peer_of(k);
  }
  for (size_t k = 0; k < posts_.size(); ++k) {
    if (!posts_[k].sent()) return peer_of(k);
  }
  return -1;
}

bool OneHop::WaitsFor(const Endpoint* endpoint) const {
  if (is_short_) return short_.WaitsFor(endpoint);
  for (size_t k = 0; k < posts_.size(); ++k) {
    if (links_[k] == endpoint) return posts_[k].waits();
  }
  return false;
}

}  // namespace annulus
