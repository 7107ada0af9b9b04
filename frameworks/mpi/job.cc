#include "frameworks/mpi/job.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "frameworks/mpi/error.h"

namespace annulus_mpi {
namespace {

std::vector<int> FirstNumbers(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

constexpr int64_t kLeaveTimeoutMs = 60000;

// Raises what a callback has used up, when the function that called it ends.
class RaiseAgain {
 public:
  explicit RaiseAgain(int32_t* signal) : signal_(signal) {}
  ~RaiseAgain() {
    if (signal_ != nullptr && *signal_ != 0) static_cast<void>(raise(std::exchange(*signal_, 0)));
  }
  RaiseAgain(const RaiseAgain&) = delete;
  RaiseAgain& operator=(const RaiseAgain&) = delete;

 private:
  int32_t* const signal_;
};

}  // namespace

// MPI is one per process by its nature. Never destroyed: the program's other threads may call until the end.
Job& Job::Own() {
  static Job* const job = new Job;
  return *job;
}

std::string Job::SetMeeting(const annulus_mpi_meeting* meeting) {
  const std::unique_lock lock(mutex_);
  if (phase_ != Phase::kBefore) return "MPI is initialised already";
  if (meeting == nullptr || meeting->struct_bytes != sizeof *meeting) {
    return "the package pyannulus and libannulus_mpiwrapper.so are of different versions";
  }
  meeting_ = *meeting;
  return "";
}

std::shared_ptr<Communicator> Job::Join() const {
  annulus_config_t config;
  // Where a framework says who is who, launchers are not asked.
  const bool told = meeting_.place != nullptr;
  const Communicator nobody("");
  nobody.Check(
      annulus_config_init(&config, sizeof config, ANNULUS_FROM_ENVIRONMENT | (told ? 0U : ANNULUS_FROM_LAUNCHER)));
  if (told) {
    char why[kMaxErrorString] = "";
    const int32_t outcome = meeting_.place(&config.rank, &config.size, why, sizeof why);
    Require(outcome == 0, kERR_OTHER, std::string("this process does not know its place: ") + why);
    config.store = &meeting_.store;
    config.timeout_ms = meeting_.timeout_ms;
    config.connect_timeout_ms = meeting_.connect_timeout_ms;
  }
  annulus_comm_t* comm = nullptr;
  nobody.Check(annulus_comm_create(&config, &comm));
  int rank = 0;
  int size = 0;
  annulus_comm_rank(comm, &rank);
  annulus_comm_size(comm, &size);
  return std::make_shared<Communicator>(comm, rank, FirstNumbers(size));
}

void Job::RequireNotForked() const {
  const pid_t process = process_.load();
  Require(process == 0 || process == getpid(), kERR_OTHER,
          "this process was forked from process " + std::to_string(process) +
              ", which had initialised MPI, and cannot use it");
}

void Job::Initialise() {
  RequireNotForked();
  {
    const std::unique_lock lock(mutex_);
    if (phase_ == Phase::kWithin) return;  // A second client of XLA in the process.
    Require(phase_ == Phase::kBefore, kERR_OTHER,
            phase_ == Phase::kAfter ? "MPI was finalized" : "another thread initialises MPI");
    phase_ = Phase::kJoining;
    process_ = getpid();
  }
  const RaiseAgain raise_again(meeting_.taken_signal);
  std::shared_ptr<Communicator> world;
  std::string failure;
  try {
    world = Join();
  } catch (const std::exception& error) {
    failure = error.what();
    world = std::make_shared<Communicator>(failure);
  }
  {
    const std::unique_lock lock(mutex_);
    communicators_[kCOMM_WORLD] = world;
    communicators_[kCOMM_SELF] = std::make_shared<Communicator>("Annulus has no MPI_COMM_SELF");
    phase_ = Phase::kWithin;
  }
  Require(failure.empty(), kERR_OTHER, failure);
}

Communicator::Patience Job::AwaitFramework() const {
  char why[kMaxErrorString] = "";
  if (meeting_.before_leaving != nullptr && meeting_.before_leaving(why, sizeof why) != 0) {
    return {std::nullopt, why};
  }
  const std::chrono::milliseconds time(meeting_.leave_timeout_ms > 0 ? meeting_.leave_timeout_ms : kLeaveTimeoutMs);
  return {std::chrono::steady_clock::now() + time,
          "its program has ended, and a call that was under way did not end within " + std::to_string(time.count()) +
              " ms"};
}

void Job::Finalise() {
  RequireNotForked();
  Require(phase_ == Phase::kWithin, kERR_OTHER, "MPI is not initialised, or was finalized");
  const Communicator::Patience patience = AwaitFramework();
  std::map<Handle, std::shared_ptr<Communicator>> leaving;
  std::map<Handle, Request> forgotten;
  {
    const std::unique_lock lock(mutex_);
    Require(phase_ == Phase::kWithin, kERR_OTHER, "another thread finalizes MPI");
    phase_ = Phase::kAfter;
    leaving.swap(communicators_);
    forgotten.swap(requests_);
  }
  // The world last: without it, peers may end what is under way in a group. Each frees its requests.
  for (auto each = leaving.rbegin(); each != leaving.rend(); ++each) each->second->Leave(patience);
}

bool Job::is_initialised() const {
  const Phase phase = phase_;
  return phase == Phase::kWithin || phase == Phase::kAfter;
}

bool Job::is_finalised() const { return phase_ == Phase::kAfter; }

std::shared_ptr<Communicator> Job::CommunicatorOf(Handle handle) const {
  RequireNotForked();
  const std::shared_lock lock(mutex_);
  Require(phase_ != Phase::kBefore, kERR_OTHER, "MPI is not initialised");
  Require(phase_ != Phase::kAfter, kERR_OTHER, "MPI was finalized");
  const auto found = communicators_.find(handle);
  Require(found != communicators_.end(), kERR_COMM, std::to_string(handle) + " is not a communicator");
  return found->second;
}

Handle Job::Add(std::shared_ptr<Communicator> communicator) {
  const std::unique_lock lock(mutex_);
  communicators_[next_] = std::move(communicator);
  return next_++;
}

void Job::Free(Handle handle) {
  const std::shared_ptr<Communicator> leaving = CommunicatorOf(handle);
  Require(handle != kCOMM_WORLD, kERR_COMM, "MPI_COMM_WORLD cannot be freed");
  {
    const std::unique_lock lock(mutex_);
    communicators_.erase(handle);
    std::erase_if(requests_, [&](const auto& each) { return each.second.communicator == leaving; });
  }
  leaving->Leave(Communicator::OfOneMinute());
}

Handle Job::Add(const Request& request) {
  const std::unique_lock lock(mutex_);
  requests_[next_] = request;
  return next_++;
}

Request Job::RequestOf(Handle handle) const {
  RequireNotForked();
  const std::shared_lock lock(mutex_);
  const auto found = requests_.find(handle);
  Require(found != requests_.end(), kERR_REQUEST,
          std::to_string(handle) + " is not a request, or its communicator was freed");
  return found->second;
}

void Job::Forget(Handle request) {
  const std::unique_lock lock(mutex_);
  requests_.erase(request);
}

}  // namespace annulus_mpi
