// CallPass: the calls of one timed pass, made through the C API in one of several modes.
//
// A pass allocates nothing once it has run.
//
// Threads: one thread at a time; collective: all ranks call it in the same order.
#pragma once

#include <annulus.h>

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bench/perf/perf_collective.h"
#include "bench/perf/perf_computing.h"
#include "bench/perf/perf_gpu.h"
#include "bench/perf/perf_group.h"

namespace annulus::perf {

enum class Mode {
  kBlocking,  // One call after the other.
  kAsync,     // All are started, then waited for.
  kGroup,     // All in one annulus_submit, and one wait.
  kOverlap,   // All are started; then the caller computes before it waits for them.
};

inline constexpr std::array kAllModes = {Mode::kBlocking, Mode::kAsync, Mode::kGroup, Mode::kOverlap};

const char* ModeName(Mode mode);
std::optional<Mode> ParseMode(std::string_view name);

// The answer of pingpong waits for its message, so the two cannot be submitted together, and nobody computes meanwhile.
bool HasMode(Kind kind, Mode mode);

struct CallBuffers {
  const void* send = nullptr;
  void* recv = nullptr;
};

class CallPass {
 public:
  // A call for each of `buffers`, which are on `gpu` unless that is null. The group and the GPU outlive the pass.
  CallPass(const Group& group, const CallSpec& spec, Mode mode, std::vector<CallBuffers> buffers, Gpu* gpu);

  Status operator()();

  // What the caller computes in kOverlap; nothing until this is set.
  void set_computing(const Computing& computing) { computing_ = computing; }

 private:
  annulus_status_t MakeOne(const CallBuffers& buffers);
  // Blocking: a message and its answer.
  annulus_status_t Bounce(const CallBuffers& buffers) const;
  // These add to requests_.
  annulus_status_t Start(const CallBuffers& buffers);
  annulus_status_t StartMessages(const CallBuffers& buffers);
  annulus_status_t Submit();
  // Waits for all of requests_ and frees them. Returns the first failure, `status` if that is one.
  annulus_status_t Finish(annulus_status_t status);
  annulus_status_t MakeAll();
  Status CopyAll();

  const Group& group_;
  const CallSpec spec_;
  const Mode mode_;
  const std::vector<CallBuffers> buffers_;
  Gpu* const gpu_;
  const int sender_;
  const int receiver_;
  const std::vector<size_t> counts_;   // Of the parts of all ranks, in the form with counts.
  std::vector<annulus_call_t> calls_;  // Calls of one pass, when the mode is a group.
  std::vector<annulus_request_t*> requests_;
  Computing computing_;
};

}  // namespace annulus::perf
