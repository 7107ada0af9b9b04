#include "collectives/comm/communicator.h"

#include <algorithm>
#include <chrono>

#include "base/cpu_cache.h"
#include "base/log.h"
#include "base/thread.h"
#include "collectives/comm/tuner.h"
#include "collectives/control/arbiter_text.h"

namespace annulus {
namespace {

// The progress thread competes with the computation that it overlaps, so it spins but briefly before it sleeps.
constexpr WaitPolicy kBackgroundPolicy{5 * kMicrosecond, 10};

// A rank streams outputs when its buffers take more than so many times its share of the last-level cache. Measured on
// two cores that share 32 MiB: buffers of 4 MiB a rank are better off in the cache, from 16 MiB on streaming pays.
constexpr size_t kStreamCaches = 1;

bool IsRepeatable(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kBarrier;
}

// Whether an allreduce may use them: CheckArguments in short, for a count that was fine before.
bool GoodBuffers(const void* sendbuf, const void* recvbuf, size_t count, DataType type) {
  const size_t element = TypeBytes(type);
  const uintptr_t send = reinterpret_cast<uintptr_t>(sendbuf);
  const uintptr_t recv = reinterpret_cast<uintptr_t>(recvbuf);
  const size_t distance = send < recv ? recv - send : send - recv;
  return send != 0 && recv != 0 && ((send | recv) & (element - 1)) == 0 &&
         (distance == 0 || distance >= count * element);
}

}  // namespace

Status Communicator::Create(const Options& options, const Setup::GiveUp& give_up,
                            std::unique_ptr<Communicator>* communicator) {
  ANNULUS_RETURN_IF_ERROR(Validate(options));
  std::unique_ptr<Setup> setup;
  ANNULUS_RETURN_IF_ERROR(Setup::Establish(options, give_up, &setup));
  std::unique_ptr<Communicator> made(new Communicator(std::move(setup)));
  // What a peer asked for (more sockets than this rank) may take more than was planned.
  const size_t needed = made->fixed_memory_.total();
  if (options.memory_bytes > 0 && needed > static_cast<size_t>(options.memory_bytes)) {
    return Status::Invalid("memory_bytes (ANNULUS_MEMORY_BYTES) is " + std::to_string(options.memory_bytes) +
                           ", but the links that the ranks agreed on take " + std::to_string(needed) + " bytes");
  }
  if (options.tuning == Tuning::kMeasured)
    ANNULUS_RETURN_IF_ERROR(Tuner(made.get(), give_up).Tune(options.tuning_file));
  *communicator = std::move(made);
  return Status();
}

Communicator::Communicator(std::unique_ptr<Setup> setup)
    : setup_(std::move(setup)),
      engine_(setup_->rank(), setup_->nranks(), setup_->plan(), &setup_->links(), setup_->monitor()),
      messages_({setup_->rank(), setup_->nranks(), setup_->plan(), &setup_->links(), &host_, setup_->monitor(),
                 setup_->options().timeout_ms * kMillisecond,
                 [this](void* cookie) {
                   std::lock_guard<std::mutex> lock(mu_);
                   Finish(static_cast<Request*>(cookie), Code::kOk);
                 }}),
      driver_(&engine_, &messages_, setup_->reactor(), setup_->control(), setup_->monitor()),
      call_timeout_(setup_->options().timeout_ms * kMillisecond),
      fixed_memory_(FixedMemory()),
      background_policy_(setup_->options().spin_us >= 0 ? setup_->wait_policy() : kBackgroundPolicy),
      refusals_(1) {
  const size_t local_ranks = static_cast<size_t>(std::max(1, setup_->local_size()));
  engine_.set_stream_bytes(kStreamCaches * LastLevelCacheBytes() / local_ranks);
  if (setup_->wait_policy().spin == 0) engine_.set_short_polls(1);
}

Communicator::~Communicator() {
  {
    std::unique_lock<std::mutex> lock(mu_);
    stopping_ = true;
    if (driving_ || !queue_.empty() || !unfinished_messages_.empty()) driver_.Interrupt();
  }
  changed_.notify_all();
  if (progress_thread_.joinable()) progress_thread_.join();
  setup_->Close();
  for (const auto& request : requests_)
    RequestTable::OfProcess().Retire(request.get(), RequestTable::End::kCommunicatorDestroyed);
}

Status Communicator::Complete(CallArguments* arguments) {
  if (arguments->created_op != 0) {
    std::lock_guard<std::mutex> lock(mu_);
    Operations::Operation operation;
    ANNULUS_RETURN_IF_ERROR(operations_.Find(arguments->created_op, &operation));
    arguments->op = operation.op;
    arguments->custom = operation.custom;
  }
  ANNULUS_RETURN_IF_ERROR(CheckArguments(*arguments, rank(), nranks()));
  const bool needs_mesh = IsDirect(arguments->kind) || IsMessage(arguments->kind);
  if (!needs_mesh || HasMesh(nranks(), setup_->plan())) return Status();
  return {Code::kUnsupported, std::string(KindName(arguments->kind)) +
                                  " needs a link between any two ranks; there are " + std::to_string(nranks()) +
                                  ", and ANNULUS_MESH_RANKS is " + std::to_string(setup_->plan().mesh_ranks)};
}

Code Communicator::Refuse(const Status& status) {
  std::lock_guard<std::mutex> lock(mu_);
  Code code = status.code();
  if (!Refused(&code)) RecordRefusal(status);
  return code;
}

void Communicator::RecordRefusal(const Status& status) {
  ErrorRecord record;
  record.failed = true;
  record.verdict.code = status.code();
  record.verdict.rank = rank();
  record.verdict.message = status.message();
  record.verdict.os_errno = status.os_errno();
  record.verdict.advice = "Correct the call; nothing was sent and the communicator stays usable.";
  if (status.code() == Code::kOutOfMemory)
    record.verdict.advice =
        "Wait for requests and free them, or raise ANNULUS_MEMORY_BYTES, and call again on this rank.";
  if (status.code() == Code::kSystem) record.verdict.advice = "Free resources and call again; nothing was sent.";
  refusals_.push_back(std::move(record));
  if (refusals_.size() > kKeptRefusals) refusals_.pop_front();
}

bool Communicator::Refused(Code* code) {
  Control* control = setup_->control();
  if (!fatal_.failed && control != nullptr && control->has_verdict()) {
    Fail(control->verdict());
    WriteTrace();
  }
  if (fatal_.failed) *code = fatal_.verdict.code;
  return fatal_.failed;
}

bool Communicator::MustNotStart(Code* code) {
  if (!InsideReduction()) return Refused(code);
  *code = Code::kInvalidArgument;
  RecordRefusal(Status::Invalid("a reduction function used the communicator that called it"));
  return true;
}

void Communicator::Fail(const Verdict& verdict) {
  if (fatal_.failed) return;
  fatal_.failed = true;
  fatal_.verdict = verdict;
  if (Board* const board = setup_->monitor()->board(); board != nullptr) board->failed.Set(1);
  if (verdict.call.sequence == 0)
    fatal_.verdict.call = driven_.sequence == 0 && !queue_.empty() ? queue_.front()->call : driven_;
  if (TraceFile* const file = setup_->trace_file(); file != nullptr) file->trace()->SetVerdict(fatal_.verdict, Now());
  Log(LogLevel::kError, rank(), "%s: %s", CodeName(verdict.code), verdict.message.c_str());
}

const ErrorRecord& Communicator::LastError() {
  std::lock_guard<std::mutex> lock(mu_);
  Code code = Code::kOk;
  return Refused(&code) ? fatal_ : refusals_.back();
}

std::optional<Verdict> Communicator::Ended(bool expected) {
  if (expected && setup_->control() != nullptr) setup_->control()->AwaitVerdict();
  std::lock_guard<std::mutex> lock(mu_);
  Code code = Code::kOk;
  return Refused(&code) ? std::optional<Verdict>(fatal_.verdict) : std::nullopt;
}

Code Communicator::Drive(const CallArguments& arguments, const Segments* segments, const Call& call,
                         const WaitPolicy& policy, std::unique_lock<std::mutex>* lock) {
  driving_ = true;
  driving_thread_ = std::this_thread::get_id();
  driven_ = call;
  lock->unlock();
  Verdict verdict;
  Buffers buffers = BuffersOf(arguments);
  buffers.segments = segments;
  const bool ok = driver_.Run(call, buffers, &host_, call_timeout_, policy, &verdict);
  EndDrive(ok, verdict, lock);
  return ok ? Code::kOk : fatal_.verdict.code;
}

bool Communicator::CanRepeat(const CallArguments& given) const {
  // What the engine did last was valid, so only the buffers are left to be checked.
  Call call;
  call.kind = given.kind;
  const bool is_barrier = given.kind == CollectiveKind::kBarrier;
  if (!is_barrier) {
    call.type = given.type;
    call.op = given.op;
    call.count = given.count;
  }
  return !driving_ && engine_.Repeats(call) &&
         (is_barrier ||
          (given.created_op == 0 && GoodBuffers(given.sendbuf, given.recvbuf, given.count, given.type))) &&
         !fatal_.failed && queue_.empty() && !group_open_ && !priorities() && driver_.MayRepeat();
}

Code Communicator::Repeat(const CallArguments& given, std::unique_lock<std::mutex>* lock) {
  const Call call = CallOf(given, nranks(), ++sequence_);
  Code code = Code::kOk;
  if (!driver_.Repeat(call, given.sendbuf, given.recvbuf)) {
    driving_ = true;
    driven_ = call;
    lock->unlock();
    Verdict verdict;
    const bool ok = driver_.Resume(call, call_timeout_, setup_->wait_policy(), &verdict);
    EndDrive(ok, verdict, lock);
    if (!ok) code = fatal_.verdict.code;
  }
  CountEnd(given, code);
  return code;
}

void Communicator::DriveMessages(const std::function<bool()>& over, const WaitPolicy& policy,
                                 std::unique_lock<std::mutex>* lock) {
  driving_ = true;
  attention_.store(true, std::memory_order_relaxed);
  lock->unlock();
  Verdict verdict;
  const auto noticed = [this, &over] {
    if (!attention_.load(std::memory_order_relaxed)) return false;
    std::lock_guard<std::mutex> guard(mu_);
    attention_.store(false, std::memory_order_relaxed);
    return over();
  };
  const bool ok = driver_.RunMessages(noticed, policy, &verdict);
  EndDrive(ok, verdict, lock);
}

void Communicator::EndDrive(bool ok, const Verdict& verdict, std::unique_lock<std::mutex>* lock) {
  // Whoever waits for our data must hear of it even when rank 0, which tells everyone, has left. Not when interrupted:
  // Setup::Close says goodbye first.
  if (!ok && setup_->control() != nullptr && setup_->control()->has_verdict()) setup_->CloseLinks();
  lock->lock();
  driving_ = false;
  driving_thread_ = std::thread::id();
  if (!ok) {
    Fail(verdict);
    FailMessages(fatal_.verdict.code);
    WriteTrace();
  }
  driven_ = Call();
  if (!ok || !queue_.empty() || !unfinished_messages_.empty()) changed_.notify_all();
}

Code Communicator::Run(const CallArguments& given) {
  if (IsRepeatable(given.kind)) {
    std::unique_lock<std::mutex> lock(mu_);
    if (CanRepeat(given)) return Repeat(given, &lock);
  }
  CallArguments arguments = given;
  Status valid = Complete(&arguments);
  if (!valid.ok()) return Refuse(valid);
  std::unique_lock<std::mutex> lock(mu_);
  Code code = Code::kOk;
  if (MustNotStart(&code)) return code;
  if (group_open_) {
    RecordRefusal(Status::Invalid("a group is open: only asynchronous calls are allowed before annulus_group_end"));
    return Code::kInvalidArgument;
  }
  if (IsMessage(arguments.kind)) return RunMessage(arguments, &lock);
  if (!driving_ && queue_.empty() && !priorities()) {
    code = Drive(arguments, nullptr, CallOf(arguments, nranks(), ++sequence_), setup_->wait_policy(), &lock);
    CountEnd(arguments, code);
    return code;
  }
  Request* request = nullptr;
  code = Enqueue(arguments, &request);
  return code == Code::kOk ? Await(request, &lock) : code;
}

Status Communicator::NeedProgressThread() {
  if (progress_thread_.joinable()) return Status();
  Status started = StartThread(
      "the progress thread", [this] { ProgressThread(); }, &progress_thread_);
  if (!started.ok()) RecordRefusal(started);
  return started;
}

void Communicator::Queue(Request* request) {
  request->queued = true;
  if (IsMessage(request->arguments.kind)) return Post(request);
  if (request->members.empty()) request->call = CallOf(request->arguments, nranks(), 0);
  request->number = ++queued_;
  if (!priorities()) request->call.sequence = ++sequence_;
  queue_.push_back(request);
  changed_.notify_all();
  CallDriver();
}

Code Communicator::Enqueue(const CallArguments& arguments, Request** queued) {
  // First what may fail: a request must not be queued when the caller is told that it is not.
  const Status ready = NeedProgressThread();
  if (!ready.ok()) return ready.code();
  *queued = NewRequest(arguments);
  Queue(*queued);
  return Code::kOk;
}

void Communicator::CallDriver() {
  attention_.store(true, std::memory_order_relaxed);
  if (driving_) driver_.Nudge();
}

void Communicator::Post(Request* message) {
  const CallArguments& a = message->arguments;
  unfinished_messages_.insert(message);
  messages_.Post({a.kind == CollectiveKind::kSend, a.root, a.sendbuf, a.recvbuf, a.count, a.type, message});
  CallDriver();
  changed_.notify_all();
}

void Communicator::Finish(Request* request, Code code) {
  if (request->members.empty()) CountEnd(request->arguments, code);
  request->code = code;
  request->done = true;
  unfinished_messages_.erase(request);
  attention_.store(true, std::memory_order_relaxed);
  for (Request* member : request->members) Finish(member, code);
  if (Request* const group = request->group; group != nullptr) {
    if (group->code == Code::kInProgress || group->code == Code::kOk) group->code = code;
    if (--group->unfinished == 0) Finish(group, group->code);
  }
  changed_.notify_all();
  Settle(request);
}

void Communicator::FailMessages(Code code) {
  while (!unfinished_messages_.empty()) Finish(*unfinished_messages_.begin(), code);
}

Code Communicator::RunMessage(const CallArguments& arguments, std::unique_lock<std::mutex>* lock) {
  const bool drives = !driving_ && queue_.empty();
  if (!drives) {
    const Status ready = NeedProgressThread();
    if (!ready.ok()) return ready.code();
  }
  Request* const request = NewRequest(arguments);
  Post(request);
  // A collective that another thread queues meanwhile must not wait for the message: the progress thread takes over.
  const auto over = [this, request] { return request->done || !queue_.empty(); };
  if (drives) DriveMessages(over, setup_->wait_policy(), lock);
  return Await(request, lock);
}

void Communicator::Abort() {
  if (setup_->control() != nullptr) {
    setup_->control()->Abort();
    return;
  }
  std::lock_guard<std::mutex> lock(mu_);
  driver_.Interrupt();
  Fail(AbortVerdict(rank()));
}

}  // namespace annulus
