#include "frameworks/mpi/job.h"

#include <numeric>
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

}  // namespace

// MPI is one per process by its nature. Never destroyed: the program's other threads may call until the end.
Job& Job::Own() {
  static Job* const job = new Job;
  return *job;
}

std::string Job::SetMeeting(const annulus_mpi_meeting* meeting) {
  const std::unique_lock lock(mutex_);
  if (phase_ != Phase::kBefore) return "MPI is initialised already";
  if (meeting == nullptr || meeting->struct_bytes != sizeof *meeting || meeting->place == nullptr) {
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

void Job::Initialise() {
  {
    const std::unique_lock lock(mutex_);
    if (phase_ == Phase::kWithin) return;  // A second client of XLA in the process.
    Require(phase_ == Phase::kBefore, kERR_OTHER,
            phase_ == Phase::kAfter ? "MPI was finalized" : "another thread initialises MPI");
    phase_ = Phase::kJoining;
  }
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

void Job::Finalise() {
  std::map<Handle, std::shared_ptr<Communicator>> leaving;
  std::map<Handle, Request> forgotten;
  {
    const std::unique_lock lock(mutex_);
    Require(phase_ == Phase::kWithin, kERR_OTHER, "MPI is not initialised, or was finalized");
    phase_ = Phase::kAfter;
    leaving.swap(communicators_);
    forgotten.swap(requests_);
  }
  for (const auto& [handle, each] : leaving) each->Leave();  // Which frees its requests.
}

bool Job::is_initialised() const {
  const std::shared_lock lock(mutex_);
  return phase_ == Phase::kWithin || phase_ == Phase::kAfter;
}

bool Job::is_finalised() const {
  const std::shared_lock lock(mutex_);
  return phase_ == Phase::kAfter;
}

std::shared_ptr<Communicator> Job::CommunicatorOf(Handle handle) const {
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
  }
  leaving->Leave();
}

Handle Job::Add(const Request& request) {
  const std::unique_lock lock(mutex_);
  requests_[next_] = request;
  return next_++;
}

Request Job::RequestOf(Handle handle) const {
  const std::shared_lock lock(mutex_);
  const auto found = requests_.find(handle);
  Require(found != requests_.end(), kERR_REQUEST, std::to_string(handle) + " is not a request");
  return found->second;
}

void Job::Forget(Handle request) {
  const std::unique_lock lock(mutex_);
  requests_.erase(request);
}

}  // namespace annulus_mpi
