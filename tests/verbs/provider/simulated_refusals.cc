#include "tests/verbs/provider/simulated_refusals.h"

#include <cerrno>
#include <optional>

namespace annulus {
namespace {

struct Thread {
  std::vector<SimulatedCall> calls;
  size_t first = SIZE_MAX;
  size_t count = 0;
  std::optional<SimulatedCall> kind;
  int error = 0;
};

Thread& ThisThread() {
  thread_local Thread thread;
  return thread;
}

}  // namespace

void SimulatedRefusals::Set(size_t first, size_t count, int error) { ThisThread() = {{}, first, count, {}, error}; }

void SimulatedRefusals::Refuse(SimulatedCall call, int error) { ThisThread() = {{}, SIZE_MAX, 0, call, error}; }

const std::vector<SimulatedCall>& SimulatedRefusals::Calls() { return ThisThread().calls; }

int SimulatedRefusals::Note(SimulatedCall call) {
  Thread& thread = ThisThread();
  const size_t number = thread.calls.size();
  thread.calls.push_back(call);
  const bool refused = call == thread.kind || (number >= thread.first && number - thread.first < thread.count);
  return refused ? thread.error : 0;
}

bool SimulatedRefusals::Refuses(SimulatedCall call) {
  const int error = Note(call);
  if (error != 0) errno = error;
  return error != 0;
}

}  // namespace annulus
