// The C API's calls, checked.
//
// Threads: see job.h.
#include "docs/examples/fashion_mnist/job.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fashion {

namespace {

[[noreturn]] void GiveUp(const char* what) {
  annulus_error_t error = {};
  error.struct_bytes = sizeof(error);
  annulus_last_error(&error);
  std::fprintf(stderr, "fashion_mnist: %s%s\n", what, error.message);
  std::exit(EXIT_FAILURE);
}

}  // namespace

Job::Job() {
  annulus_config_t config;
  annulus_config_init(&config, sizeof config, ANNULUS_FROM_ENVIRONMENT | ANNULUS_FROM_LAUNCHER);
  char size[16];
  if (annulus_config_value(&config, "size", size, sizeof size) != ANNULUS_OK) GiveUp("");
  if (std::strcmp(size, "-1") == 0) {
    std::fprintf(stderr, "fashion_mnist: no launcher, so one rank trains alone; 4 would: annulus-run -np 4 train\n");
    config.rank = 0;
    config.size = 1;
  }
  if (annulus_comm_create(&config, &comm_) != ANNULUS_OK) GiveUp("cannot join the job: ");
  Check(annulus_comm_rank(comm_, &rank_));
  Check(annulus_comm_size(comm_, &size_));
}

Job::~Job() { annulus_comm_destroy(comm_); }

void Job::Check(annulus_status_t status) const {
  if (status == ANNULUS_OK) return;
  annulus_error_t error = {};
  error.struct_bytes = sizeof(error);
  annulus_last_error(&error);
  std::fprintf(stderr, "fashion_mnist: rank %d: %s: %s %s\n", rank_, annulus_status_string(status), error.message,
               error.advice);
  std::exit(EXIT_FAILURE);
}

void Job::Broadcast(void* data, size_t bytes) {
  Check(annulus_broadcast(comm_, data, data, bytes / sizeof(int32_t), ANNULUS_INT32, 0));
}

void Job::Sum(std::vector<double>* numbers) {
  Check(annulus_allreduce(comm_, numbers->data(), numbers->data(), numbers->size(), ANNULUS_FLOAT64, ANNULUS_SUM));
}

void Job::EndIfAny(const std::string& error) {
  if (!error.empty()) std::fprintf(stderr, "fashion_mnist: rank %d: %s\n", rank_, error.c_str());
  std::vector<double> errors = {error.empty() ? 0.0 : 1.0};
  Sum(&errors);
  if (errors[0] == 0) return;
  annulus_comm_destroy(comm_);
  std::exit(EXIT_FAILURE);
}

void Job::StartAverage(float* values, size_t count) {
  annulus_request_t* request = nullptr;
  Check(annulus_allreduce_async(comm_, values, values, count, ANNULUS_FLOAT32, ANNULUS_AVG, &request));
  pending_.push_back(request);
}

void Job::FinishAverages() {
  for (annulus_request_t* request : pending_) {
    Check(annulus_request_wait(request, -1));
    Check(annulus_request_free(request));
  }
  pending_.clear();
}

}  // namespace fashion
