// Communicator's requests: how they come about, are waited for, and go.
#include <algorithm>
#include <chrono>

#include "collectives/comm/communicator.h"

namespace annulus {
namespace {

// As good as for ever, and within what the clock can add.
constexpr Nanoseconds kLongestWait = 365 * 24 * 3600 * kSecond;

// Lets the layouts point to copies, which `numbers` keeps.
void KeepLayouts(size_t nranks, CallArguments* arguments, std::vector<size_t>* numbers) {
  const size_t** arrays[] = {&arguments->send_layout.counts, &arguments->send_layout.offsets,
                             &arguments->recv_layout.counts, &arguments->recv_layout.offsets};
  numbers->reserve(std::size(arrays) * nranks);
  for (const size_t** array : arrays) {
    if (*array == nullptr) continue;
    const size_t* copy = numbers->data() + numbers->size();
    numbers->insert(numbers->end(), *array, *array + nranks);
    *array = copy;
  }
}

std::chrono::steady_clock::time_point TimePoint(Deadline deadline) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
}

}  // namespace

Request* Communicator::NewRequest(const CallArguments& arguments) {
  requests_.push_back(RequestTable::OfProcess().Take(this));
  Request* const request = requests_.back().get();
  request->place = requests_.size() - 1;
  request->arguments = arguments;
  request->priority = priority_;
  // Where only the root's are used, the others' may point anywhere.
  const bool uses_layouts = HasVariableParts(arguments.kind) && (!HasRoot(arguments.kind) || rank() == arguments.root);
  if (uses_layouts) KeepLayouts(nranks(), &request->arguments, &request->numbers);
  return request;
}

Code Communicator::Submit(const CallArguments& given, RequestHandle* request) {
  CallArguments arguments = given;
  Status valid = Complete(&arguments);
  if (!valid.ok()) return Refuse(valid);
  std::lock_guard<std::mutex> lock(mu_);
  Code code = Code::kOk;
  if (MustNotStart(&code) || OverBudget(arguments, &code)) return code;
  if (!group_open_) {
    if (request == nullptr) {
      RecordRefusal(Status::Invalid("request is null, which is allowed in a group only"));
      return Code::kInvalidArgument;
    }
    Request* queued = nullptr;
    code = Enqueue(arguments, &queued);
    if (code == Code::kOk) *request = queued->handle;
    return code;
  }
  Request* const collected = NewRequest(arguments);
  collected->queued = false;
  collected->discarded = request == nullptr;
  group_.push_back(collected);
  if (request != nullptr) *request = collected->handle;
  return Code::kOk;
}

Code Communicator::Await(Request* request, std::unique_lock<std::mutex>* lock) {
  changed_.wait(*lock, [request] { return request->done; });
  const Code code = request->code;
  Forget(request);
  return code;
}

Status Communicator::Wait(RequestHandle handle, int64_t timeout_ms) {
  std::unique_lock<std::mutex> lock(mu_);
  Request* const request = RequestTable::OfProcess().Find(handle);
  if (request == nullptr) return RequestTable::OfProcess().WhyNot(handle);
  const auto misused = [this](const char* what) {
    Status status = Status::Invalid(what);
    RecordRefusal(status);
    return status;
  };
  if (request->delivered)
    return misused("the request was waited for before, and its outcome given; it can only be freed");
  if (!InsideReduction()) {
    if (!request->queued && timeout_ms != 0)
      return misused("the request's group is still open; call annulus_group_end before you wait");
    const auto done = [request] { return request->done; };
    ++request->waiters;
    if (timeout_ms < 0) {
      // Every collective before it, and it itself, ends at a deadline of its own.
      changed_.wait(lock, done);
    } else if (timeout_ms > 0) {
      const int64_t bounded_ms = std::min<int64_t>(timeout_ms, kLongestWait / kMillisecond);
      changed_.wait_until(lock, TimePoint(DeadlineAfter(bounded_ms * kMillisecond)), done);
    }
    --request->waiters;
  }
  if (!request->done) return Status(Code::kInProgress);
  request->delivered = true;
  const Code code = request->code;
  Settle(request);
  return Status(code);
}

Status Communicator::Free(RequestHandle handle) {
  RequestTable& table = RequestTable::OfProcess();
  std::unique_lock<std::mutex> lock(mu_);
  Request* request = table.Find(handle);
  if (request != nullptr && request->queued && !InsideReduction()) {
    // Another thread may free it first, though it must not.
    changed_.wait(lock, [&] { return table.Find(handle) == nullptr || request->done; });
    request = table.Find(handle);
  }
  if (request == nullptr) return table.WhyNot(handle);
  table.Retire(request, RequestTable::End::kFreed);
  request->discarded = true;
  Settle(request);
  return Status();
}

void Communicator::Settle(Request* request) {
  if (request->done && request->discarded && request->waiters == 0) Forget(request);
}

void Communicator::Forget(Request* request) {
  std::swap(requests_[request->place], requests_.back());
  requests_[request->place]->place = request->place;
  requests_.pop_back();
}

}  // namespace annulus
