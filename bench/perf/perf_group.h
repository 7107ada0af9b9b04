// Group: the ranks of a benchmark run, with the small agreements that measuring needs.
//
// Threads: one thread at a time. Every method but the getters is collective: all ranks call it in the same order.
#pragma once

#include <annulus.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace annulus::perf {

// The calling thread's latest failed call, which returned `status`, with all that the library says about it.
Status LastFailure(annulus_status_t status);

// Reads the value that a communicator of `config` would have for a setting, as text.
Status ReadSetting(const annulus_config_t& config, const char* name, std::string* value);

// Returns `exit_code`, with which a rank is about to leave before it has joined the job. Of several ranks that all
// leave for the same reason one `speaks`; a launcher ends the others as soon as one fails, so the silent ones wait for
// that, for 3 s at most.
int Leave(int exit_code, bool speaks);

class Group {
 public:
  // Joins the job that `config` describes.
  static Status Join(const annulus_config_t& config, std::unique_ptr<Group>* group);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  annulus_comm_t* comm() const { return comm_; }

  // Turns the status of the latest call into a Status with what the library says about it.
  Status Check(annulus_status_t status) const { return status == ANNULUS_OK ? Status() : LastFailure(status); }

  Status Barrier();
  // Replaces each value by the largest, the least or the sum over the ranks.
  Status Max(std::span<double> values);
  Status Min(std::span<double> values);
  Status Sum(std::span<int64_t> values);
  // Gathers each rank's words, in rank order; every rank gives equally many.
  Status Allgather(std::span<const int32_t> mine, std::vector<int32_t>* all);

 private:
  Group() = default;

  annulus_comm_t* comm_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace annulus::perf
