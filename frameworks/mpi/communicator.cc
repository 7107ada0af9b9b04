#include "frameworks/mpi/communicator.h"

#include <algorithm>
#include <utility>

#include "frameworks/mpi/error.h"

namespace annulus_mpi {
namespace {

// An aborted call returns within a few of them.
constexpr std::chrono::seconds kAbortTakes{20};

struct Member {
  int32_t process;
  int32_t key;
};

}  // namespace

Communicator::Communicator(annulus_comm_t* comm, int rank, std::vector<int> members)
    : comm_(comm), rank_(rank), members_(std::move(members)) {}

Communicator::Communicator(std::string failure) : failure_(std::move(failure)) {}

Communicator::~Communicator() { Leave(OfOneMinute()); }

Communicator::Patience Communicator::OfOneMinute() {
  return {std::chrono::steady_clock::now() + std::chrono::minutes(1),
          "its communicator was freed, and a call that was under way did not end within a minute"};
}

void Communicator::Leave(const Patience& patience) {
  std::unique_lock lock(mutex_);
  if (comm_ == nullptr || leaving_) return;
  leaving_ = true;
  failure_ = "the communicator was freed, or MPI finalized";
  const auto is_unused = [this] { return uses_ == 0; };
  if (!patience.until.has_value() || !unused_.wait_until(lock, *patience.until, is_unused)) {
    annulus_comm_abort(comm_, patience.why.c_str());
    // What is in use is not freed, ever: better lost than freed under a call.
    if (!unused_.wait_for(lock, kAbortTakes, is_unused)) return;
  }
  annulus_comm_destroy(std::exchange(comm_, nullptr));
}

Communicator::Use::Use(const Communicator& communicator) : communicator_(communicator) {
  const std::lock_guard lock(communicator.mutex_);
  Require(communicator.comm_ != nullptr && !communicator.leaving_, kERR_COMM, communicator.failure_);
  ++communicator.uses_;
}

Communicator::Use::~Use() {
  const std::lock_guard lock(communicator_.mutex_);
  if (--communicator_.uses_ == 0) communicator_.unused_.notify_all();
}

void Communicator::Check(annulus_status_t status) const {
  if (status == ANNULUS_OK) return;
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  annulus_last_error(&error);
  std::string text = std::string("Annulus: ") + annulus_status_string(status);
  if (error.status != ANNULUS_OK) {
    if (*error.message != '\0') text += std::string(": ") + error.message;
    if (error.rank >= 0 && error.rank < size()) {
      text += " [at fault: process " + std::to_string(members_[static_cast<size_t>(error.rank)]) + "]";
    }
    if (*error.advice != '\0') text += std::string(". ") + error.advice;
  }
  throw Error(ClassOfStatus(status), text);
}

std::shared_ptr<Communicator> Communicator::Split(int colour, int key) const {
  const std::lock_guard one_at_a_time(splits_);
  const Use use(*this);
  annulus_comm_t* child = nullptr;
  Check(annulus_comm_split(use.get(), std::max(colour, -1), key, &child));
  if (child == nullptr) return nullptr;
  int rank = 0;
  int size = 0;
  annulus_comm_rank(child, &rank);
  annulus_comm_size(child, &size);
  const Member own{members_[static_cast<size_t>(rank_)], key};
  std::vector<Member> all(static_cast<size_t>(size));
  const annulus_status_t status = annulus_allgather(child, &own, all.data(), sizeof own, ANNULUS_UINT8);
  std::vector<int> members;
  std::string keys;
  bool keys_are_ranks = true;
  for (const Member& each : all) {
    keys_are_ranks &= each.key == static_cast<int>(members.size());
    keys += (keys.empty() ? "" : ", ") + std::to_string(each.key);
    members.push_back(each.process);
  }
  auto made = std::make_shared<Communicator>(child, rank, std::move(members));
  made->Check(status);
  // XLA splits by a device's rank in its group, so keys with gaps mean that the group has devices which are not here.
  // Sums would lack their part.
  Require(keys_are_ranks, kERR_ARG,
          "the keys of " + std::to_string(size) + " processes are " + keys +
              ", not 0 to n - 1: each process must have one device, and all processes of a group of devices must take "
              "part");
  return made;
}

}  // namespace annulus_mpi
