// One rank of a job that some launcher started: says what the launcher told it and what Annulus made of it, and checks
// a sum over all ranks. It is given no argument and no setting but the job's key.
//
// Threads: one.
#include <annulus.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr size_t kCount = 100'000;  // Beyond the one-hop exchange: the ring runs.

// Every rank adds rank + 1, so each element must be 1 + 2 + ... + size.
bool SumsAreRight(annulus_comm_t* comm, int rank, int size) {
  std::vector<float> values(kCount, static_cast<float>(rank + 1));
  if (annulus_allreduce(comm, values.data(), values.data(), kCount, ANNULUS_FLOAT32, ANNULUS_SUM) != ANNULUS_OK) {
    return false;
  }
  const float expected = static_cast<float>(size * (size + 1) / 2);
  for (const float value : values) {
    if (value != expected) return false;
  }
  return true;
}

// What the environment says.
std::string Setting(const char* name) {
  char value[256] = "";
  annulus_config_value(nullptr, name, value, sizeof value);
  return value;
}

// What failed, in Annulus's words.
std::string Message() {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  return annulus_last_error(&error) == ANNULUS_OK ? error.message : "";
}

}  // namespace

int main() {
  annulus_comm_t* comm = nullptr;
  if (annulus_comm_create(nullptr, &comm) != ANNULUS_OK) {
    std::fprintf(stderr, "rank_report: %s\n", Message().c_str());
    return 1;
  }
  int rank = -1;
  int size = -1;
  int local_rank = -1;
  int local_size = -1;
  annulus_comm_rank(comm, &rank);
  annulus_comm_size(comm, &size);
  annulus_comm_local_rank(comm, &local_rank);
  annulus_comm_local_size(comm, &local_size);
  const bool right = SumsAreRight(comm, rank, size);
  std::printf("report rank=%d size=%d local_rank=%d local_size=%d told=%s/%s rendezvous=%s sums=%s\n", rank, size,
              local_rank, local_size, Setting("local_rank").c_str(), Setting("local_size").c_str(),
              Setting("rendezvous").c_str(), right ? "right" : "wrong");
  std::fflush(stdout);
  return annulus_comm_destroy(comm) == ANNULUS_OK && right ? 0 : 1;
}
