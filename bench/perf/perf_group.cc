// The benchmark's own small collectives, made of Annulus's.
//
// Threads: see perf_group.h.
#include "bench/perf/perf_group.h"

#include <poll.h>

namespace annulus::perf {

Status LastFailure(annulus_status_t status) {
  annulus_error_t error{};
  error.struct_bytes = sizeof(error);
  if (annulus_last_error(&error) != ANNULUS_OK) return Status(static_cast<Code>(status));
  std::string text = error.message;
  if (error.collective[0] != '\0' && error.sequence > 0) {
    text += " [" + std::string(error.collective) + " number " + std::to_string(error.sequence) + "]";
  }
  if (error.scope == ANNULUS_SCOPE_COMMUNICATOR) {
    if (error.rank >= 0) text += " [rank at fault: " + std::to_string(error.rank) + "]";
    if (error.peer >= 0) text += " [peer: " + std::to_string(error.peer) + "]";
    if (error.advice[0] != '\0') text += " Advice: " + std::string(error.advice);
  }
  return {static_cast<Code>(status), text, error.rank, error.cause_code};
}

Status Group::Join(const annulus_config_t& config, std::unique_ptr<Group>* group) {
  std::unique_ptr<Group> joined(new Group());
  const annulus_status_t status = annulus_comm_create(&config, &joined->comm_);
  if (status != ANNULUS_OK) {
    joined->comm_ = nullptr;
    const Status failure = LastFailure(status);
    return {failure.code(), "cannot join the job: " + failure.message()};
  }
  ANNULUS_RETURN_IF_ERROR(joined->Check(annulus_comm_rank(joined->comm_, &joined->rank_)));
  ANNULUS_RETURN_IF_ERROR(joined->Check(annulus_comm_size(joined->comm_, &joined->size_)));
  *group = std::move(joined);
  return Status();
}

int Leave(int exit_code, bool speaks) {
  constexpr int kMostWaitMs = 3000;
  if (exit_code != 0 && !speaks) poll(nullptr, 0, kMostWaitMs);  // The launcher's signal ends it.
  return exit_code;
}

Status ReadSetting(const annulus_config_t& config, const char* name, std::string* value) {
  char text[1025];  // As long as the longest setting.
  const annulus_status_t status = annulus_config_value(&config, name, text, sizeof text);
  if (status != ANNULUS_OK) return LastFailure(status);
  *value = text;
  return Status();
}

Group::~Group() {
  // Destroying reports what the run has reported already.
  if (comm_ != nullptr) static_cast<void>(annulus_comm_destroy(comm_));
}

Status Group::Barrier() { return Check(annulus_barrier(comm_)); }

Status Group::Max(std::span<double> values) {
  return Check(annulus_allreduce(comm_, values.data(), values.data(), values.size(), ANNULUS_FLOAT64, ANNULUS_MAX));
}

Status Group::Min(std::span<double> values) {
  return Check(annulus_allreduce(comm_, values.data(), values.data(), values.size(), ANNULUS_FLOAT64, ANNULUS_MIN));
}

Status Group::Sum(std::span<int64_t> values) {
  return Check(annulus_allreduce(comm_, values.data(), values.data(), values.size(), ANNULUS_INT64, ANNULUS_SUM));
}

Status Group::Allgather(std::span<const int32_t> mine, std::vector<int32_t>* all) {
  all->assign(mine.size() * static_cast<size_t>(size_), 0);
  return Check(annulus_allgather(comm_, mine.data(), all->data(), mine.size(), ANNULUS_INT32));
}

}  // namespace annulus::perf
