// A rank for tests of annulus-run: allreduces without end, and says its process's number first.
//
//   watch_rank [RANK STATUS]    rank RANK exits with STATUS after a hundred calls, its communicator open
//
// A rank whose call fails exits with status 1.
#include <annulus.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int kCallsBeforeExit = 100;

// What failed, in Annulus's words.
std::string Message() {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  return annulus_last_error(&error) == ANNULUS_OK ? error.message : "";
}

}  // namespace

int main(int argc, char** argv) {
  annulus_comm_t* comm = nullptr;
  if (annulus_comm_create(nullptr, &comm) != ANNULUS_OK) {
    std::fprintf(stderr, "%s\n", Message().c_str());
    return 1;
  }
  std::printf("%d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  int rank = 0;
  annulus_comm_rank(comm, &rank);
  const bool exits = argc > 2 && std::atoi(argv[1]) == rank;
  std::vector<float> data(1000, 1.0F);
  for (int calls = 0; !exits || calls < kCallsBeforeExit; ++calls) {
    if (annulus_allreduce(comm, data.data(), data.data(), data.size(), ANNULUS_FLOAT32, ANNULUS_MAX) == ANNULUS_OK)
      continue;
    annulus_comm_destroy(comm);
    return 1;
  }
  return std::atoi(argv[2]);
}
