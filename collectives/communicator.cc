#include "collectives/communicator.h"

#include <chrono>

#include "base/check.h"
#include "base/log.h"
#include "collectives/slice_tag.h"

namespace annulus {
namespace {

// The progress thread competes with the computation that it overlaps, so it spins but briefly before it sleeps.
constexpr WaitPolicy kBackgroundPolicy{5 * kMicrosecond, 10};

std::chrono::steady_clock::time_point TimePoint(Deadline deadline) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
}

}  // namespace

Status Communicator::Create(const Options& options, std::unique_ptr<Communicator>* communicator) {
  ANNULUS_RETURN_IF_ERROR(Validate(options));
  std::unique_ptr<Setup> setup;
  ANNULUS_RETURN_IF_ERROR(Setup::Establish(options, &setup));
  communicator->reset(new Communicator(std::move(setup)));
  return Status();
}

Communicator::Communicator(std::unique_ptr<Setup> setup)
    : setup_(std::move(setup)),
      engine_(setup_->rank(), setup_->nranks(), setup_->plan(), &setup_->links()),
      driver_(&engine_, setup_->reactor(), setup_->control()),
      background_policy_(setup_->options().spin_us >= 0 ? setup_->wait_policy() : kBackgroundPolicy) {}

Communicator::~Communicator() {
  {
    std::unique_lock<std::mutex> lock(mu_);
    stopping_ = true;
    if (driving_ || !queue_.empty()) driver_.Interrupt();
  }
  changed_.notify_all();
  if (progress_thread_.joinable()) progress_thread_.join();
  setup_->Close();
  for (Request* request : requests_) delete request;
}

Code Communicator::Refuse(const Status& status) {
  std::lock_guard<std::mutex> lock(mu_);
  Code code = status.code();
  if (Refused(&code)) return code;
  error_.failed = true;
  error_.verdict = Verdict();
  error_.verdict.code = status.code();
  error_.verdict.rank = rank();
  error_.verdict.message = status.message();
  error_.verdict.advice = "Correct the call; nothing was sent and the communicator stays usable.";
  return code;
}

bool Communicator::Refused(Code* code) {
  Control* control = setup_->control();
  if (!failed_ && control != nullptr && control->has_verdict()) Fail(control->verdict());
  if (failed_) *code = error_.verdict.code;
  return failed_;
}

void Communicator::Fail(const Verdict& verdict) {
  if (failed_) return;
  failed_ = true;
  error_.failed = true;
  error_.verdict = verdict;
  Log(LogLevel::kError, rank(), "%s: %s", CodeName(verdict.code), verdict.message.c_str());
}

const ErrorRecord& Communicator::last_error() const {
  std::lock_guard<std::mutex> lock(mu_);
  // A verdict may have come while no call was made.
  const_cast<Communicator*>(this)->Refused(&const_cast<Communicator*>(this)->error_.verdict.code);
  return error_;
}

Code Communicator::Drive(const Arguments& arguments, const Call& call, Deadline deadline, const WaitPolicy& policy,
                         std::unique_lock<std::mutex>* lock) {
  driving_ = true;
  lock->unlock();
  Verdict verdict;
  const bool ok = driver_.Run(call, arguments.sendbuf, arguments.recvbuf, &host_, deadline, policy, &verdict);
  lock->lock();
  driving_ = false;
  if (!ok) Fail(verdict);
  if (!queue_.empty() || !ok) changed_.notify_all();
  return ok ? Code::kOk : error_.verdict.code;
}

Code Communicator::Run(const Arguments& arguments) {
  Status valid = CheckArguments(arguments, rank(), nranks());
  if (!valid.ok()) return Refuse(valid);
  std::unique_lock<std::mutex> lock(mu_);
  Code code = Code::kOk;
  if (Refused(&code)) return code;
  const Deadline deadline = TimeoutFromNow();
  if (!driving_ && queue_.empty()) {
    return Drive(arguments, CallOf(arguments, ++sequence_), deadline, setup_->wait_policy(), &lock);
  }
  Request* request = Enqueue(arguments, deadline);
  lock.unlock();
  code = Wait(request, -1);
  Free(request);
  return code;
}

Request* Communicator::Enqueue(const Arguments& arguments, Deadline deadline) {
  Request* request = new Request{this, arguments, CallOf(arguments, ++sequence_), deadline};
  requests_.insert(request);
  queue_.push_back(request);
  if (!progress_thread_.joinable()) progress_thread_ = std::thread([this] { ProgressThread(); });
  changed_.notify_all();
  return request;
}

Code Communicator::Submit(const Arguments& arguments, Request** request) {
  Status valid = CheckArguments(arguments, rank(), nranks());
  if (!valid.ok()) return Refuse(valid);
  std::lock_guard<std::mutex> lock(mu_);
  Code code = Code::kOk;
  if (Refused(&code)) return code;
  *request = Enqueue(arguments, 0);
  return Code::kOk;
}

Code Communicator::Wait(Request* request, int64_t timeout_ms) {
  std::unique_lock<std::mutex> lock(mu_);
  const auto done = [request] { return request->done; };
  if (timeout_ms < 0) {
    // Every collective before it, and it itself, ends at a deadline of its own.
    changed_.wait(lock, done);
  } else if (timeout_ms > 0) {
    changed_.wait_until(lock, TimePoint(DeadlineAfter(timeout_ms * kMillisecond)), done);
  }
  return request->code;
}

void Communicator::Free(Request* request) {
  Wait(request, -1);
  std::lock_guard<std::mutex> lock(mu_);
  requests_.erase(request);
  delete request;
}

void Communicator::Abort() {
  if (setup_->control() != nullptr) {
    setup_->control()->Abort();
    return;
  }
  Verdict verdict;
  verdict.code = Code::kAborted;
  verdict.rank = rank();
  verdict.message = "rank 0 called annulus_comm_abort";
  std::lock_guard<std::mutex> lock(mu_);
  driver_.Interrupt();
  Fail(verdict);
}

void Communicator::ProgressThread() {
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    changed_.wait(lock, [this] { return (stopping_ || !queue_.empty()) && !driving_; });
    if (queue_.empty()) return;
    Request* request = queue_.front();
    Code code = Code::kOk;
    if (stopping_) {
      code = Code::kAborted;
    } else if (!Refused(&code)) {
      const Deadline deadline = request->deadline != 0 ? request->deadline : TimeoutFromNow();
      code = Drive(request->arguments, request->call, deadline, background_policy_, &lock);
    }
    queue_.pop_front();
    request->code = code;
    request->done = true;
    changed_.notify_all();
  }
}

}  // namespace annulus
