#include "collectives/api/process_state.h"

#include <memory>

namespace annulus::c_api {

ProcessState& OfProcess() {
  static ProcessState& state = *std::make_unique<ProcessState>().release();
  return state;
}

}  // namespace annulus::c_api
