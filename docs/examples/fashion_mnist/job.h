// Job: this process's place among the ranks, and the collectives that training needs.
//
// A failing collective ends the process with Annulus's own account of what went wrong: by then every other rank has
// been told the same, and training cannot go on without one of them.
//
// Threads: one thread at a time. Every method but the getters is collective: all ranks call it in the same order.
#pragma once

#include <annulus.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fashion {

class Job {
 public:
  // Joins the job that the launcher describes in the environment; without a launcher this process is the only rank.
  Job();
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Everybody gets rank 0's bytes; `bytes` is a multiple of 4.
  void Broadcast(void* data, size_t bytes);
  // Adds up each number over the ranks.
  void Sum(std::vector<double>* numbers);
  // Ends all ranks when `error` is not empty on one of them; that one prints it.
  void EndIfAny(const std::string& error);

  // Starts to average `count` values over the ranks, in place; returns at once. The values must be left alone until
  // FinishAverages.
  void StartAverage(float* values, size_t count);
  // Waits for all averages that were started.
  void FinishAverages();

 private:
  void Check(annulus_status_t status) const;

  annulus_comm_t* comm_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  std::vector<annulus_request_t*> pending_;
};

}  // namespace fashion
