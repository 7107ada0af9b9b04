// A rank for watch_test: allreduces without end, and says its process's number first.
#include <annulus.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

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
    std::fprintf(stderr, "%s\n", Message().c_str());
    return 1;
  }
  std::printf("%d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  std::vector<float> data(1000, 1.0F);
  while (annulus_allreduce(comm, data.data(), data.data(), data.size(), ANNULUS_FLOAT32, ANNULUS_MAX) == ANNULUS_OK) {
  }
  annulus_comm_destroy(comm);
  return 1;
}
