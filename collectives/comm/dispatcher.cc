#include "collectives/comm/dispatcher.h"

#include <algorithm>
#include <cstdint>

#include "base/cpu_cache.h"
#include "base/thread.h"

namespace annulus {
namespace {

// The progress thread competes with the computation that it overlaps, so it spins only briefly before it sleeps.
constexpr WaitPolicy kBackgroundPolicy{5 * kMicrosecond, 10};

// A rank streams outputs when its buffers take more than this many times its share of the last-level cache. Measured on
// two cores that share 32 MiB: buffers of 4 MiB per rank are better left in the cache; from 16 MiB on streaming pays.
constexpr size_t kStreamCaches = 1;

bool IsRepeatable(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kBarrier;
}

// Whether an allreduce may use these buffers: a short form of CheckArguments for a count that was valid before.
bool GoodBuffers(const void* sendbuf, const void* recvbuf, size_t count, DataType type) {
  const size_t element = TypeBytes(type);
  const uintptr_t send = reinterpret_cast<uintptr_t>(sendbuf);
  const uintptr_t recv = reinterpret_cast<uintptr_t>(recvbuf);
  const size_t distance = send < recv ? recv - send : send - recv;
  return send != 0 && recv != 0 && ((send | recv) & (element - 1)) == 0 &&
         (distance == 0 || distance >= count * element);
}

}  // namespace

Dispatcher::Dispatcher(const DispatcherConfig& config)
    : setup_(config.setup),
      queue_(config.queue),
      failures_(config.failures),
      report_(config.report),
      requests_(config.requests),
      queues_(config.queues),
      ended_(config.ended),
      is_plain_(!by_priority() && queues_->host_only()),
      engine_(rank(), setup_->plan(), setup_->topology(), &setup_->links(), setup_->monitor(),
              setup_->resources().domains),
      messages_({rank(), nranks(), setup_->plan(), &setup_->links(), setup_->monitor(),
                 setup_->options().timeout_ms * kMillisecond,
                 [this](void* cookie) { FinishMessage(static_cast<Request*>(cookie)); }}),
      driver_(&engine_, &messages_, queues_, setup_->reactor(), setup_->control(), setup_->monitor()),
      call_timeout_(setup_->options().timeout_ms * kMillisecond),
      background_policy_(setup_->options().spin_us >= 0 ? setup_->wait_policy() : kBackgroundPolicy) {
  const size_t local_ranks = static_cast<size_t>(std::max(1, setup_->local_size()));
  engine_.set_stream_bytes(kStreamCaches * LastLevelCacheBytes() / local_ranks);
  if (setup_->wait_policy().spin == 0) engine_.set_short_polls(1);
}

void Dispatcher::Stop() {
  if (queue_->Stop()) driver_.Interrupt();
  if (progress_thread_.joinable()) progress_thread_.join();
}

Dispatcher::~Dispatcher() {
  Stop();
  // Devices use slots until they are drained, and links use memory of the engine and the messages until they are
  // closed.
  queues_->Drain();
  setup_->Close();
}

bool Dispatcher::CanRunAgain(const CallArguments& given) const {
  // The engine's latest call was valid, so only the buffers remain to be checked.
  Call call;
  call.kind = given.kind;
  const bool is_barrier = given.kind == CollectiveKind::kBarrier;
  if (!is_barrier) {
    call.type = given.type;
    call.op = given.op;
    call.count = given.count;
  }
  return engine_.Repeats(call) &&
         (is_barrier ||
          (given.created_op == 0 && GoodBuffers(given.sendbuf, given.recvbuf, given.count, given.type))) &&
         !failures_->ended() && (is_plain_ || CanRunAgainHere(given)) && driver_.MayRepeat();
}

bool Dispatcher::CanRunAgainHere(const CallArguments& given) const {
  return !by_priority() && queues_->QueueOf(given.sendbuf) == nullptr && queues_->QueueOf(given.recvbuf) == nullptr;
}

std::optional<Code> Dispatcher::RunAgain(const CallArguments& given) {
  if (!IsRepeatable(given.kind)) return std::nullopt;
  CallQueue::Turn turn(queue_);
  if (!turn || !CanRunAgain(given)) return std::nullopt;
  const Call call = CallOf(given, nranks(), turn.NextSequence());
  Code code = Code::kOk;
  if (!driver_.Repeat(call, given.sendbuf, given.recvbuf)) {
    turn.Lengthen(call);
    Verdict verdict;
    if (!driver_.Resume(call, LimitOf(given), setup_->wait_policy(), &verdict)) {
      Fail(verdict);
      code = failures_->verdict().code;
    }
  }
  turn.EndCall(given, code);
  return code;
}

Status Dispatcher::Run(const CallArguments& arguments) {
  if (IsMessage(arguments.kind)) return RunMessage(arguments);
  if (!by_priority()) {
    CallQueue::Turn turn(queue_);
    // A communicator that failed since the caller looked must not be driven any more.
    if (turn && failures_->ended()) return Status(failures_->verdict().code);
    if (turn) {
      const Call call = CallOf(arguments, nranks(), turn.NextSequence());
      turn.Lengthen(call);
      const Code code = Drive(arguments, nullptr, call, setup_->wait_policy());
      turn.EndCall(arguments, code);
      return Status(code);
    }
  }
  // Do first what may fail: a request must not stay queued when the caller is told that it failed.
  ANNULUS_RETURN_IF_ERROR(StartProgressThread());
  Request* const request = requests_->Make(arguments);
  Queue(request);
  return Status(requests_->Await(request));
}

Status Dispatcher::RunMessage(const CallArguments& arguments) {
  Request* message = nullptr;
  {
    CallQueue::Turn turn(queue_);
    if (turn) {
      if (failures_->ended()) return Status(failures_->verdict().code);
      turn.Lengthen(Call());
      message = requests_->Make(arguments);
      Post(message);
      // A collective that another thread queues meanwhile must not wait for the message: the progress thread takes
      // over.
      const auto over = [this, message] { return requests_->IsDone(message) || queue_->HasCalls(); };
      DriveMessages(over, setup_->wait_policy());
    }
  }
  if (message == nullptr) {
    ANNULUS_RETURN_IF_ERROR(StartProgressThread());
    message = requests_->Make(arguments);
    Post(message);
    queue_->Announce();
  }
  return Status(requests_->Await(message));
}

Code Dispatcher::Drive(const CallArguments& arguments, const Segments* segments, const Call& call,
                       const WaitPolicy& policy) {
  Verdict verdict;
  Buffers buffers = BuffersOf(arguments);
  buffers.segments = segments;
  if (driver_.Run(call, buffers, LimitOf(arguments), policy, &verdict)) return Code::kOk;
  Fail(verdict);
  return failures_->verdict().code;
}

void Dispatcher::DriveMessages(const std::function<bool()>& over, const WaitPolicy& policy) {
  // A communicator that failed before this turn began must not be driven any more.
  if (failures_->ended()) return FailMessages(failures_->verdict().code);
  queue_->AddNews();
  Verdict verdict;
  const auto noticed = [this, &over] { return queue_->Notice() && over(); };
  if (!driver_.RunMessages(noticed, policy, &verdict)) Fail(verdict);
}

void Dispatcher::Fail(const Verdict& verdict) {
  // The user's buffers are about to be given back, and slots may go with their links.
  queues_->Drain();
  // Ranks that wait for our data must learn of the failure even when rank 0, which tells everyone, has left. Not when
  // interrupted: Setup::Close says goodbye first.
  if (setup_->control() != nullptr && setup_->control()->has_verdict()) {
    setup_->CloseLinks(setup_->control()->verdict());
  }
  failures_->End(verdict);
  FailMessages(failures_->verdict().code);
  report_->KeepTrace();
}

void Dispatcher::FailMessages(Code code) {
  for (Request* const message : queue_->TakeMessages()) Drop(message, code);
}

Status Dispatcher::StartProgressThread() {
  const std::lock_guard<std::mutex> lock(start_mu_);
  if (progress_thread_.joinable()) return Status();
  return StartThread(
      "the progress thread", [this] { ProgressThread(); }, &progress_thread_);
}

void Dispatcher::Queue(Request* request) {
  if (IsMessage(request->arguments.kind)) {
    Post(request);
    return queue_->Announce();
  }
  if (request->members.empty()) request->call = CallOf(request->arguments, nranks(), 0);
  queue_->Add(request);
}

void Dispatcher::Post(Request* message) {
  const CallArguments& a = message->arguments;
  queue_->AddMessage(message);
  messages_.Post({a.kind == CollectiveKind::kSend,
                  a.root,
                  {a.sendbuf, a.send_queue},
                  {a.recvbuf, a.recv_queue},
                  a.count,
                  a.type,
                  message,
                  a.timeout()});
}

void Dispatcher::FinishMessage(Request* message) {
  queue_->EndMessage(message, Code::kOk);
  requests_->Finish(message, Code::kOk);
  queue_->AddNews();
}

void Dispatcher::Drop(Request* request, Code code) {
  queue_->CountEnd(*request, code);
  requests_->Finish(request, code);
}

}  // namespace annulus
