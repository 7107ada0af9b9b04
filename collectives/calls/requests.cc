#include "collectives/calls/requests.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace annulus {
namespace {

Tensor TensorOf(const CallArguments& a) { return {{a.sendbuf, a.send_queue}, {a.recvbuf, a.recv_queue}, a.count}; }

// Gives the lock back while a thread waits for the request, however that ends.
class Waiting {
 public:
  Waiting(Request* request, std::unique_lock<Mutex>* lock) : request_(request), lock_(lock) {
    ++request_->waiters;
    lock_->unlock();
  }
  ~Waiting() {
    lock_->lock();
    --request_->waiters;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Request* const request_;
  std::unique_lock<Mutex>* const lock_;
};

}  // namespace

Requests::Requests(const RequestsConfig& config) : config_(config), table_(config.table), mu_(*config.mu) {}

Requests::Unqueued::~Unqueued() {
  if (requests_ == nullptr) return;
  const std::lock_guard<Mutex> lock(requests_->mu_);
  for (Request* const each : made_) requests_->Forget(each);
  for (Request* const each : more_) requests_->Forget(each);
}

Request* Requests::Unqueued::Fuse(const std::vector<Request*>& members) {
  more_.reserve(more_.size() + 1);
  more_.push_back(requests_->MakeFused(members));
  return more_.back();
}

Request* Requests::Unqueued::Group(const std::vector<Request*>& members) {
  more_.reserve(more_.size() + 1);
  more_.push_back(requests_->MakeGroup(members));
  return more_.back();
}

Requests::~Requests() {
  for (size_t i = 0; i < used_; ++i) table_->Retire(requests_[i].get(), RequestTable::End::kCommunicatorDestroyed);
}

void Requests::CollectAll() {
  for (size_t i = used_; i-- > 0;) {
    if (MayCollect(requests_[i].get())) Forget(requests_[i].get());
  }
  collect_at_ = 2 * used_;  // Looks are few beside requests.
}

void Requests::Collect() {
  CollectLatest();
  if (used_ == requests_.size() && used_ >= collect_at_) CollectAll();
}

Request* Requests::Acquire() {
  if (!is_making_several_) Collect();
  if (used_ < requests_.size()) return AcquireSpare();
  requests_.push_back(table_->Issue(config_.owner));
  requests_[used_]->place = used_;
  ++used_;
  return Latest();
}

Request* Requests::Add(const CallArguments& arguments) {
  Request* const request = Acquire();
  Rollback rollback(this, request);
  request->arguments = arguments;
  request->call = Call();
  if (arguments.options != nullptr && arguments.options->used()) {
    request->options = *arguments.options;
    request->arguments.options = &request->options;
    request->label = arguments.label() != nullptr ? arguments.label() : "";
    request->options.label = request->label.c_str();
    if (request->options.done != nullptr && request->done_place == nullptr)
      request->done_place = std::make_unique<Callbacks::Place>();
  } else {
    request->options = CallOptions();
    request->arguments.options = nullptr;
  }
  if (UsesLayouts(arguments)) CopyLayouts(request);
  rollback.Keep();
  return request;
}

void Requests::CopyLayouts(Request* request) const {
  CallArguments& a = request->arguments;
  std::vector<size_t>& numbers = request->numbers;
  numbers.reserve(NumbersOfLayouts());
  for (const size_t** array :
       {&a.send_layout.counts, &a.send_layout.offsets, &a.recv_layout.counts, &a.recv_layout.offsets}) {
    if (*array == nullptr) continue;
    const size_t* const copy = numbers.data() + numbers.size();
    numbers.insert(numbers.end(), *array, *array + config_.nranks);
    *array = copy;
  }
}

Request* Requests::Make(const CallArguments& arguments) {
  const std::lock_guard<Mutex> lock(mu_);
  return Add(arguments);
}

Status Requests::MakeWithin(const RequestBudget& budget, std::span<const CallArguments> calls, bool discarded,
                            Request** made) {
  const std::lock_guard<Mutex> lock(mu_);
  if (budget.most > 0) ANNULUS_RETURN_IF_ERROR(CheckBudget(budget));
  // All or none, also where memory ends in the midst of them.
  Rollback rollback(this);
  for (const CallArguments& call : calls) {
    *made = Add(call);
    (*made++)->discarded = discarded;
  }
  rollback.Keep();
  return Status();
}

Status Requests::CheckBudget(const RequestBudget& budget) {
  CollectAll();
  const size_t held = budget.held_elsewhere + Bytes();
  if (held + budget.wanted <= budget.most) return Status();
  return {Code::kOutOfMemory, "one more request would exceed memory_bytes (ANNULUS_MEMORY_BYTES), " +
                                  std::to_string(budget.most) + ": the communicator holds " + std::to_string(held) +
                                  " bytes, " + std::to_string(used_) + " requests included"};
}

Request* Requests::MakeFused(const std::vector<Request*>& members) {
  const CallArguments& first = members.front()->arguments;
  std::vector<Tensor> tensors;
  for (const Request* member : members) tensors.push_back(TensorOf(member->arguments));
  const std::lock_guard<Mutex> lock(mu_);
  Rollback rollback(this);
  Request* const fused = Add(first);
  fused->discarded = true;
  fused->options.done = nullptr;
  // The longest limit of all; the communicator's goes before any.
  for (const Request* member : members) {
    const Nanoseconds limit = member->options.timeout;
    const Nanoseconds longest = fused->options.timeout;
    fused->options.timeout = limit == 0 || longest == 0 ? 0 : std::max(limit, longest);
  }
  fused->members = members;
  Combine(tensors, fused);
  rollback.Keep();
  return fused;
}

Request* Requests::AddFused(std::span<const CallArguments> calls) {
  tensors_.clear();
  for (const CallArguments& call : calls) tensors_.push_back(TensorOf(call));
  Request* const fused = Add(calls.front());
  Rollback rollback(this, fused);
  fused->fused_calls = calls.size();
  Combine(tensors_, fused);
  rollback.Keep();
  return fused;
}

void Requests::Combine(std::span<const Tensor> tensors, Request* fused) const {
  fused->segments.Assign(tensors, TypeBytes(fused->arguments.type), config_.nranks);
  fused->call = CallOf(fused->arguments, config_.nranks, 0);
  fused->call.kind = CollectiveKind::kAllreduceGroup;
  fused->call.count = 0;
  for (const Tensor& tensor : tensors) fused->call.count += tensor.count;
  fused->call.root = static_cast<int32_t>(DigestOf(tensors) & 0x7fffffff);
}

Request* Requests::MakeAgreement(size_t words) {
  CallArguments arguments;
  arguments.kind = CollectiveKind::kAgreement;
  arguments.type = DataType::kUint64;
  arguments.count = words;
  const std::lock_guard<Mutex> lock(mu_);
  Rollback rollback(this);
  Request* const request = Add(arguments);
  request->discarded = true;
  request->numbers.resize(words * (static_cast<size_t>(config_.nranks) + 1));
  request->arguments.sendbuf = request->numbers.data();
  request->arguments.recvbuf = request->numbers.data() + words;
  request->arguments.options = &request->options;
  rollback.Keep();
  return request;
}

void Requests::Hold(Request* agreement, std::span<Request* const> requests) {
  const std::lock_guard<Mutex> lock(mu_);
  for (Request* const each : requests) {
    if (!IsMessage(each->arguments.kind)) agreement->held.push_back(each);
  }
}

Request* Requests::MakeGroup(const std::vector<Request*>& members) {
  const std::lock_guard<Mutex> lock(mu_);
  return AddGroup(members);
}

Request* Requests::AddGroup(std::span<Request* const> members) {
  Request* const group = Add(CallArguments());
  group->unfinished = members.size();
  for (Request* const member : members) member->group = group;
  if (members.empty()) MarkDone(group, Code::kOk);
  return group;
}

Request* Requests::AddAll(std::span<const CallArguments> calls, bool discarded, Request** made) {
  const bool needs_group = calls.size() > 1 && !discarded;
  // All or none, also where memory ends in the midst of them.
  Rollback rollback(this);
  for (size_t i = 0; i < calls.size(); ++i) {
    made[i] = Add(calls[i]);
    made[i]->discarded = discarded || needs_group;
  }
  Request* const whole = needs_group ? AddGroup({made, calls.size()}) : made[0];
  rollback.Keep();
  return whole;
}

void Requests::Finish(Request* request, Code code) {
  const std::lock_guard<Mutex> lock(mu_);
  MarkDone(request, code);
}

void Requests::Refuse(Request* agreement, const Status& why) {
  std::shared_ptr<const Status> refusal;
  try {
    refusal = std::make_shared<const Status>(why);
  } catch (const std::bad_alloc&) {  // Then it has no words.
  }
  bool is_heard = false;
  {
    const std::lock_guard<Mutex> lock(mu_);
    for (Request* const each : agreement->held) {
      each->refusal = refusal;
      is_heard = is_heard || IsHeard(*each);
    }
    is_heard = is_heard || agreement->held.empty();  // This rank refused the calls itself.
    MarkDone(agreement, why.code());
  }
  if (!is_heard) LogUnread(why);
}

bool Requests::IsHeard(const Request& request) {
  const Request* const group = request.group;
  if (!request.discarded || request.options.done != nullptr || (group != nullptr && !group->discarded)) return true;
  return std::ranges::any_of(request.members, [](const Request* member) { return IsHeard(*member); });
}

// The communicator goes on after a refusal, so no later call tells of it.
void Requests::LogUnread(const Status& refusal) const {
  Log(LogLevel::kWarn, config_.rank, "a call whose outcome the program does not ask for was refused: %s",
      refusal.message().c_str());
}

void Requests::MarkAllDone(Request* request, Code code) {
  request->code = code;
  if (request->options.received != nullptr && code == Code::kOk)
    TellReceived(request->arguments.root, request->options.tag, request->arguments.count, request->options.received);
  request->SetDone();
  request->keep.reset();
  // Before the place is free for another call: it names this one until then.
  if (request->options.done != nullptr) {
    request->done_place =
        config_.callbacks->Add({request->options.done, request->options.done_context, code, request->stream},
                               std::move(request->done_place), SeenBy(*request).awaited);
  }
  // A fused request stands for its members.
  if (request->stream != nullptr && request->members.empty()) request->stream->EndOne();
  for (Request* const member : request->members) {
    member->refusal = request->refusal;
    MarkDone(member, code);
  }
  for (Request* const held : request->held) MarkDone(held, code);
  if (Request* const group = request->group; group != nullptr) {
    if (group->code == Code::kInProgress || group->code == Code::kOk) {
      group->code = code;
      if (code != Code::kOk) group->label.swap(request->label);  // A group's request begins without one.
      group->refusal = request->refusal;
    }
    if (--group->unfinished == 0) MarkDone(group, group->code);
  }
  if (code == Code::kOk) table_->NoteGoodEnd(request);
  ForgetIfUnused(request);
}

Status Requests::Release(Request* request) {
  const std::lock_guard<Mutex> lock(mu_);
  Status outcome = request->Outcome();
  Forget(request);
  return outcome;
}

Status Requests::Wait(RequestHandle handle, int64_t timeout_ms, const AwaitEnd& await, FailedCall* failed) {
  if (timeout_ms < -1) return Status::Invalid("timeout_ms is " + std::to_string(timeout_ms) + "; allowed: -1 or more");
  std::unique_lock<Mutex> lock(mu_);
  Request* const request = table_->Find(handle);
  if (request == nullptr) return table_->WhyNot(handle);
  if (await != nullptr && !request->done) {
    // Without a limit: this call and every one before it end at their own deadlines.
    const int64_t bounded_ms = std::min(timeout_ms, kLongestWaitMs);
    request->awaited = true;
    const Waiting waiting(request, &lock);
    await(request, timeout_ms < 0 ? kNoDeadline : DeadlineAfter(bounded_ms * kMillisecond));
  }
  if (!request->done) return Status(Code::kInProgress);
  Status outcome = request->Outcome();
  const bool is_group = request->fused_calls > 0;
  if (!outcome.ok()) *failed = {is_group ? CollectiveKind::kNone : request->arguments.kind, request->label};
  request->told = true;
  ForgetIfUnused(request);
  return outcome;
}

bool Requests::FreeDone(RequestHandle handle) {
  if (table_->LetGo(handle)) return true;
  const std::lock_guard<Mutex> lock(mu_);
  Request* const request = table_->Find(handle);
  if (request == nullptr || !request->done || request->waiters > 0) return false;
  if (request->refusal != nullptr) return false;  // Free has words for one that nobody has read.
  Forget(request);
  return true;
}

Status Requests::Free(RequestHandle handle, const AwaitEnd& await) {
  std::unique_lock<Mutex> lock(mu_);
  Request* const request = table_->Find(handle);
  if (request == nullptr) return table_->WhyNot(handle);
  if (await != nullptr && !request->done) {
    const Waiting waiting(request, &lock);
    await(request, kNoDeadline);
  }
  // Another thread may have freed it meanwhile, although that is an error.
  const bool was_freed = table_->Find(handle) == nullptr;
  const Status outcome = was_freed ? table_->WhyNot(handle) : Status();
  if (!was_freed) table_->Retire(request, RequestTable::End::kFreed);
  request->discarded = true;
  const std::shared_ptr<const Status> unread = request->told || was_freed ? nullptr : request->refusal;
  ForgetIfUnused(request);
  lock.unlock();
  if (unread != nullptr) LogUnread(*unread);
  return outcome;
}

void Requests::Forget(Request* request) {
  if (request != Latest()) {
    std::swap(requests_[request->place], requests_[used_ - 1]);
    requests_[request->place]->place = request->place;
  }
  ForgetLatest(request);
}

void Requests::GiveBack() {
  std::swap(requests_[used_], requests_.back());
  requests_.pop_back();
}

size_t Requests::Bytes() const {
  size_t bytes = 0;
  for (size_t i = 0; i < used_; ++i) {
    Request* const request = requests_[i].get();
    if (MayCollect(request)) continue;
    bytes += sizeof(Request) + request->numbers.capacity() * sizeof(size_t) +
             (request->members.capacity() + request->held.capacity()) * sizeof(Request*) +
             request->segments.MemoryBytes();
  }
  return bytes;
}

size_t Requests::MemoryBytes() const {
  const std::lock_guard<Mutex> lock(mu_);
  return Bytes();
}

}  // namespace annulus
