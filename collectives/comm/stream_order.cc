#include "collectives/comm/stream_order.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "collectives/calls/fold_calls.h"

namespace annulus {
namespace {

// Smaller calls take less time through host memory: where processes share a device it changes between their contexts
// three times in a fold, 150 us each on an H200.
constexpr size_t kLeastFoldBytes = size_t{1} << 20;
// With less memory smaller ones are folds too.
constexpr size_t kLeastOfMemory = 64;
// Less would cut calls into too many pieces.
constexpr size_t kLeastMemory = 64 * 1024;
// Halves of the memory begin and end with whole elements.
constexpr size_t kPieceAlignment = 256;

bool HasStream(const CallArguments& call) { return call.options != nullptr && call.options->on_stream; }

// Gives a lock back for as long as it lives.
class WithoutLock {
 public:
  explicit WithoutLock(std::mutex* mu) : mu_(mu) { mu_->unlock(); }
  ~WithoutLock() { mu_->lock(); }
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  std::mutex* const mu_;
};

}  // namespace

void StreamOrder::Open(const MemoryDomains* domains, size_t most_bytes, Folds folds, GraphReplays::Config replays,
                       std::function<void(const std::string& why)> lost) {
  if (domains == nullptr) return;
  replays_ = std::make_unique<GraphReplays>(std::move(replays));
  for (MemoryDomain* const domain : domains->devices()) {
    if (calls_ == nullptr) calls_ = domain->OpenStreams(most_bytes);
  }
  if (calls_ != nullptr) calls_->OnLost(std::move(lost));
  if (folds.memory_bytes >= kLeastMemory) agreement_ = std::make_unique<FoldAgreement>(folds.can);
  fold_rules_ = std::move(folds);
}

size_t StreamOrder::LeastFoldBytes() const {
  return std::min(kLeastFoldBytes, fold_rules_.memory_bytes / kLeastOfMemory);
}

// A group of small calls, each with hops of its own, would take longer than through host memory. How large an exchange
// is, or a group with one, no rank knows: so every exchange by itself may be a fold, where that is wished for, and no
// such group.
bool StreamOrder::MayBeFolds(std::span<const CallArguments> calls) const {
  const auto may_be = [](const CallArguments& call) { return HasFoldProgram(call.kind) && call.created_op == 0; };
  const auto is_exchange = [](const CallArguments& call) { return IsFoldExchange(call.kind); };
  if (std::ranges::any_of(calls, is_exchange))
    return fold_rules_.exchanges && agreement_ != nullptr && calls.size() == 1;
  return agreement_ != nullptr && std::ranges::all_of(calls, may_be) &&
         MeanFoldBytes(calls, nranks_) >= LeastFoldBytes();
}

// The allreduces of a group are no calls of their own, and ask nothing.
size_t StreamOrder::FindCandidate(std::span<const CallArguments> calls) const {
  const auto may_agree_in = [&](const CallArguments& call) {
    return !IsFoldExchange(call.kind) && (calls.size() == 1 || call.kind != CollectiveKind::kAllreduce) &&
           FoldBytes(call, nranks_) >= LeastFoldBytes() && fold_rules_.may_be(call);
  };
  return static_cast<size_t>(std::ranges::find_if(calls, may_agree_in) - calls.begin());
}

StreamFold* StreamOrder::FoldOf(StreamCall* call, size_t number) {
  const auto is_its = [call](const auto& folds) { return folds->call == call; };
  auto found = std::ranges::find_if(folds_, is_its);
  if (found == folds_.end()) found = folds_.insert(folds_.end(), std::make_unique<PlaceFolds>());
  PlaceFolds& folds = **found;
  folds.call = call;
  while (folds.of.size() <= number) {
    folds.of.push_back(std::make_unique<StreamFold>());
    folds.of.back()->call = call;
  }
  return folds.of[number].get();
}

std::unique_lock<std::mutex> StreamOrder::Lock(std::span<const CallArguments> calls) {
  return std::ranges::any_of(calls, HasStream) ? std::unique_lock<std::mutex>(mu_) : std::unique_lock<std::mutex>();
}

StreamOrder::Call::~Call() {
  if (place_.call != nullptr) order_->calls_->GiveBack(place_);
}

Status StreamOrder::Call::Stage(std::span<CallArguments> calls, bool may_do_nothing, Deadline until) {
  if (std::ranges::none_of(calls, HasStream)) return Status();
  const auto differs = [&](const CallArguments& call) {
    return !HasStream(call) || call.options->stream != calls.front().options->stream;
  };
  if (differs(calls.front()) || std::ranges::any_of(calls, differs))
    return Status::Invalid("the calls of a group must have the same stream");
  if (order_->calls_ == nullptr) return {Code::kUnsupported, "no device of this process has streams"};
  stream_ = calls.front().options->stream;
  ANNULUS_RETURN_IF_ERROR(order_->calls_->FindCapture(stream_, &capture_));
  // No call of a graph is a candidate for a fold: ranks launch graphs as often as they like.
  if (is_captured()) return StageInGraph(calls);
  if (may_do_nothing || !order_->MayBeFolds(calls)) return StageCopies(calls, may_do_nothing, until);
  ANNULUS_RETURN_IF_ERROR(order_->agreement_->Await(order_->candidates_ + 1, until));
  has_folds_ = order_->agreement_->IsFold(order_->candidates_ + 1);
  if (has_folds_ && calls.size() == 1) return StageProgram(&calls.front(), until);
  if (has_folds_) {
    is_group_ = true;  // Which of its allreduces are one is known later.
    until_ = until;
    return Status();
  }
  ANNULUS_RETURN_IF_ERROR(StageCopies(calls, may_do_nothing, until));
  const size_t candidate = order_->FindCandidate(calls);
  if (candidate == calls.size()) return Status();
  DoTask();
  has_folds_ = true;
  StreamFold* const fold = order_->FoldOf(place_.call, 0);
  fold->pieces = 0;
  order_->making_.by_request.assign(calls.size(), nullptr);
  order_->making_.by_request[candidate] = fold;
  return Status();
}

Status StreamOrder::Call::StageCopies(std::span<CallArguments> calls, bool may_do_nothing, Deadline until) {
  size_t bytes = 0;
  order_->places_.clear();
  for (const CallArguments& call : calls) order_->places_.push_back(order_->buffers_.Arrange(call, &bytes));
  ANNULUS_RETURN_IF_ERROR(
      order_->calls_->Acquire(stream_, static_cast<int>(calls.size()), bytes, false, until, &place_));
  for (size_t i = 0; i < calls.size(); ++i)
    order_->buffers_.Replace(&calls[i], order_->places_[i], place_.staging, place_.inputs, place_.outputs);
  // What is copied back is then what was there.
  if (may_do_nothing) std::ranges::copy(*place_.outputs, std::back_inserter(*place_.inputs));
  return Status();
}

// A stream for which the driver waits may wait for a call that another thread has yet to put into a stream.
Status StreamOrder::Call::StageInGraph(std::span<CallArguments> calls) {
  size_t bytes = 0;
  std::vector<StagedBuffers::Place> places;
  for (const CallArguments& call : calls) places.push_back(order_->buffers_.Arrange(call, &bytes));
  {
    const WithoutLock others(&order_->mu_);
    ANNULUS_RETURN_IF_ERROR(order_->calls_->AcquireInGraph(stream_, bytes, order_->replays_->bell(), &place_));
  }
  for (size_t i = 0; i < calls.size(); ++i)
    order_->buffers_.Replace(&calls[i], places[i], place_.staging, place_.inputs, place_.outputs);
  return Status();
}

void StreamOrder::Call::DoTask() {
  FoldAgreement& agreement = *order_->agreement_;
  const FoldAgreement::Task task = agreement.NextTask();
  if (task == FoldAgreement::Task::kShare) {
    SharedPlace memory;
    const Status shared = order_->calls_->Share(stream_, order_->fold_rules_.memory_bytes, &memory);
    if (shared.ok()) order_->gpu_bytes_.store(order_->fold_rules_.memory_bytes, std::memory_order_relaxed);
    agreement.Done(task, shared, memory);
  } else if (task == FoldAgreement::Task::kReach) {
    std::vector<std::byte*> memory;
    const Status reached = order_->calls_->Reach(agreement.places(), &memory);
    const size_t half = order_->fold_rules_.memory_bytes / 2 / kPieceAlignment * kPieceAlignment;
    if (reached.ok()) order_->layout_ = LayOut(order_->rank_, agreement.places(), std::move(memory), half);
    agreement.Done(task, reached);
  }
}

Status StreamOrder::Call::StageProgram(CallArguments* call, Deadline until) {
  StreamOrder& order = *order_;
  Making& making = order.making_;
  making.shapes.resize(std::max<size_t>(making.shapes.size(), 1));
  making.shapes.front().Clear();
  making.calls.assign(1, DescribeFold(*call, order.rank_, order.nranks_, &making.shapes.front()));
  const size_t bytes = FoldStagingBytes(order.layout_, making.calls);
  ANNULUS_RETURN_IF_ERROR(order.calls_->Acquire(stream_, 1, bytes, true, until, &place_));
  making.folds.assign(1, order.FoldOf(place_.call, 0));
  making.by_request = making.folds;
  MakeFoldProgram(order.layout_, making.calls, order.pieces_, place_.staging, place_.program, making.folds);
  call->send_queue = call->recv_queue = nullptr;  // The ranks touch neither buffer.
  return Status();
}

// Requests without elements have no fold: the ranks do them as usual, which touches no buffer.
Status StreamOrder::Call::StageGroup(std::span<Request* const> made, std::span<Request* const> queued) {
  StreamOrder& order = *order_;
  Making& making = order.making_;
  making.shapes.resize(std::max(making.shapes.size(), queued.size()));
  making.calls.clear();
  making.by_request.assign(queued.size(), nullptr);
  std::vector<size_t> requests;  // Of those described.
  for (size_t i = 0; i < queued.size(); ++i) {
    const Request& request = *queued[i];
    FoldShape* const shape = &making.shapes[making.calls.size()];
    shape->Clear();
    const bool is_empty =
        request.is_fused() ? request.call.count == 0 : FoldBytes(request.arguments, order.nranks_) == 0;
    if (is_empty) continue;
    making.calls.push_back(request.is_fused() ? DescribeFold(request.members, shape)
                                              : DescribeFold(request.arguments, order.rank_, order.nranks_, shape));
    requests.push_back(i);
  }
  const size_t bytes = FoldStagingBytes(order.layout_, making.calls);
  ANNULUS_RETURN_IF_ERROR(order.calls_->Acquire(stream_, static_cast<int>(made.size()), bytes, true, until_, &place_));
  making.folds.clear();
  for (const size_t request : requests) {
    making.folds.push_back(order.FoldOf(place_.call, making.folds.size()));
    making.by_request[request] = making.folds.back();
  }
  MakeFoldProgram(order.layout_, making.calls, order.pieces_, place_.staging, place_.program, making.folds);
  const auto forget = [](Request* each) { each->arguments.send_queue = each->arguments.recv_queue = nullptr; };
  std::ranges::for_each(made, forget);  // The ranks touch no buffer.
  std::ranges::for_each(queued, forget);
  return Status();
}

Status StreamOrder::Call::Enqueue(std::span<Request* const> made, std::span<Request* const> queued) {
  if (is_group_) ANNULUS_RETURN_IF_ERROR(StageGroup(made, queued));
  if (place_.call == nullptr) return Status();
  const StreamCalls::Place place = place_;
  place_ = {};
  ANNULUS_RETURN_IF_ERROR(order_->calls_->Enqueue(stream_, place));
  if (!is_captured()) rest_ = place;
  for (Request* const each : made) each->stream = place.call;
  for (Request* const each : queued) each->stream = place.call;
  if (has_folds_) NameFolds(is_group_ ? queued : made);
  return Status();
}

void StreamOrder::Call::NameFolds(std::span<Request* const> of) {
  for (size_t i = 0; i < of.size(); ++i) {
    StreamFold* const fold = order_->making_.by_request[i];
    if (fold == nullptr) continue;
    fold->agreement = order_->agreement_.get();
    fold->number = ++order_->candidates_;
    order_->pieces_ += fold->counted_pieces();
    of[i]->fold = fold;
  }
}

Status StreamOrder::Call::Finish() { return rest_.call != nullptr ? order_->calls_->Finish(stream_, rest_) : Status(); }

}  // namespace annulus
