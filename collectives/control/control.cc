// Start and end of the control thread, and the work that other threads pass to it.
#include "collectives/control/control.h"

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "collectives/control/arbiter_text.h"
#include "collectives/control/control_judge.h"
#include "collectives/control/control_member.h"
#include "collectives/control/sockets/socket_net.h"

namespace annulus {

// The thread, its io_context and the role that it plays.
class Control::Thread {
 public:
  Thread(const ControlConfig& control, ControlRoleConfig config)
      : rank_(control.rank),
        conclude_(config.conclude),
        judge_lost_(config.judge_lost),
        work_(asio::make_work_guard(context_)),
        closing_(context_),
        net_(std::in_place, &context_, control.job_key + control.connections.door().ticket,
             ControlHello(control.identity, control.rank, control.nranks, control.encrypts)) {
    config.rank = control.rank;
    config.nranks = control.nranks;
    config.net = &*net_;
    if (rank_ == 0) role_ = std::make_unique<ControlJudge>(config);
    if (rank_ != 0) role_ = std::make_unique<ControlMember>(config);
  }

  Status Start(ControlConnections connections);
  // Runs `work` on the control thread, later.
  void Post(std::function<void(ControlRole*)> work);
  // Waits, at most for `grace`, until everything posted before has run.
  void Flush(Nanoseconds grace);
  void Close();
  int rank() const { return rank_; }

 private:
  void Run();
  void EndWithoutMemory();
  void Depart();
  void LimitClosing();

  const int rank_;
  const std::function<void(const Verdict&)> conclude_;
  const std::function<void()> judge_lost_;
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::steady_timer closing_;
  std::optional<SocketNet> net_;  // Until memory runs out, as the role.
  std::unique_ptr<ControlRole> role_;
  std::thread thread_;
};

Status Control::Thread::Start(ControlConnections connections) {
  ANNULUS_RETURN_IF_ERROR(role_->Open(std::move(connections)));
  return StartThread(
      "the control thread", [this] { Run(); }, &thread_);
}

void Control::Thread::Run() {
  try {
    context_.run();
  } catch (const std::bad_alloc&) {
    EndWithoutMemory();
  }
}

// A handler that did not finish may have left its connection unread, so this rank can only end. With a verdict that has
// no words this needs no memory.
void Control::Thread::EndWithoutMemory() {
  Verdict silent;
  silent.code = Code::kOutOfMemory;
  silent.rank = rank_;
  judge_lost_();  // There is no more news.
  try {
    Verdict verdict = silent;
    verdict.message = "no memory was left on the control thread of rank " + std::to_string(rank_);
    verdict.advice = AdviceFor(Code::kOutOfMemory);
    role_->Settle(verdict);
    conclude_(verdict);
  } catch (const std::bad_alloc&) {  // The others learn of it when the connections end.
    conclude_(silent);
  }
  role_.reset();
  net_.reset();
}

void Control::Thread::Post(std::function<void(ControlRole*)> work) {
  asio::post(context_, [this, work = std::move(work)] { work(role_.get()); });
}

void Control::Thread::Flush(Nanoseconds grace) {
  if (std::this_thread::get_id() == thread_.get_id()) return;
  struct Latch {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto latch = std::make_shared<Latch>();  // Outlives this call when the thread is late.
  Post([latch](ControlRole*) {
    const std::lock_guard<std::mutex> lock(latch->mutex);
    latch->done = true;
    latch->changed.notify_one();
  });
  std::unique_lock<std::mutex> lock(latch->mutex);
  latch->changed.wait_for(lock, std::chrono::nanoseconds(grace), [&] { return latch->done; });
}

void Control::Thread::Close() {
  try {
    asio::post(context_, [this] { Depart(); });
  } catch (const std::bad_alloc&) {  // Without a goodbye.
    context_.stop();
  }
  thread_.join();
}

void Control::Thread::Depart() {
  LimitClosing();
  role_->Depart([this] { context_.stop(); });
}

void Control::Thread::LimitClosing() {
  closing_.expires_after(std::chrono::nanoseconds(kCloseGrace));
  closing_.async_wait([this](const asio::error_code&) {
    if (role_->AwaitsReturn()) return LimitClosing();
    context_.stop();
  });
}

Control::Control(std::function<void()> on_verdict) : on_verdict_(std::move(on_verdict)) {}

Control::~Control() { Close(); }

Status Control::Start(ControlConfig config, std::unique_ptr<Control>* control) {
  std::unique_ptr<Control> made(new Control(std::move(config.on_verdict)));
  ControlRoleConfig role;
  role.activity = &made->activity_;
  role.conclude = [control = made.get()](const Verdict& verdict) { control->Conclude(verdict); };
  role.heard_at = &made->heard_at_;
  role.path_is_silent = &made->path_is_silent_;
  role.judge_lost = [control = made.get()] { control->judge_lost_at_.store(Now()); };
  std::unique_ptr<Thread> thread;
  try {
    thread = std::make_unique<Thread>(config, role);
  } catch (const std::system_error& error) {  // The io_context found no file descriptors.
    return Status::System("creating the control thread's reactor", error.code().value());
  }
  ANNULUS_RETURN_IF_ERROR(thread->Start(std::move(config.connections)));
  made->thread_ = std::move(thread);
  *control = std::move(made);
  return Status();
}

void Control::Conclude(const Verdict& verdict) {
  if (!verdict_.Set(verdict)) {
    const auto says_it = [&verdict](const Verdict& told) {
      return told.code == Code::kPeerLost && told.rank == verdict.rank;
    };
    const bool is_news = verdict.code == Code::kPeerLost && !verdict_.FindWithin(0, says_it);
    if (is_news) verdict_.AddLoss(verdict);
  } else if (on_verdict_) {
    on_verdict_();
  }
}

std::optional<Verdict> Control::Parted(const std::vector<int>& ranks, bool expected) {
  const auto concerns = [&ranks](const Verdict& told) {
    return told.code == Code::kAborted || told.rank < 0 || std::ranges::find(ranks, told.rank) != ranks.end();
  };
  const auto news_ended = [this] {
    const Nanoseconds lost_at = judge_lost_at_.load();
    return has_verdict() && lost_at != 0 && Now() - lost_at > kVerdictGrace;
  };
  const bool waits = expected && !news_ended();
  std::optional<Verdict> reason = verdict_.FindWithin(waits ? kVerdictGrace : 0, concerns);
  if (!reason && news_ended()) reason = verdict();
  return reason;
}

// A pause of this process says nothing about rank 0, which may have been paused with it, as where their machine was;
// and what rank 0 has said since then may be unread in the socket. So the wait begins anew after one.
bool Control::AwaitVerdict(Deadline until) {
  constexpr Nanoseconds kLook = 100 * kMillisecond;
  constexpr Nanoseconds kOverslept = 200 * kMillisecond;
  int pauses_left = kMostPauses;
  Nanoseconds start = Now();
  for (Nanoseconds now = start;; now = Now()) {
    const Deadline due = VerdictDue(start, heard_at_.load(), until);
    if (now >= due) return has_verdict();
    const Deadline wakes = std::min(due, now + kLook);
    if (verdict_.WaitFor(wakes - now)) return true;
    const Nanoseconds woke = Now();
    if (woke - wakes > kOverslept && pauses_left-- > 0) start = woke;
  }
}

Verdict Control::Report(const Status& failure, const Call& call, Deadline until) {
  if (has_verdict()) return verdict();
  thread_->Post([failure, call](ControlRole* role) { role->Report(failure, call); });
  if (!AwaitVerdict(until)) {
    const Verdict alone = UnansweredVerdict(thread_->rank(), path_is_silent_.load());
    Conclude(alone);
    thread_->Post([alone](ControlRole* role) { role->Settle(alone); });
    thread_->Flush(kSettleGrace);
  }
  return verdict();
}

void Control::Doubt() {
  thread_->Post([](ControlRole* role) { role->Doubt(); });
}

void Control::Abort(const std::string& reason) {
  if (has_verdict() || thread_ == nullptr) return;
  const Verdict aborted = AbortVerdict(thread_->rank(), reason);
  // The order matters: a rank that knows of a verdict closes its links, and the arbiter must learn of the abort before
  // it learns of broken links.
  thread_->Post([aborted](ControlRole* role) { role->Settle(aborted); });
  Conclude(aborted);
  thread_->Flush(kSettleGrace);
}

void Control::Close() {
  if (thread_ == nullptr) return;
  thread_->Close();
  thread_.reset();
}

}  // namespace annulus
