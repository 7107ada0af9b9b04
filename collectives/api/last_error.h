// The latest failed call of each thread, for annulus_last_error.
//
// Threads: any; each has its own.
#pragma once

#include <string>

#include "base/status.h"
#include "collectives/annulus.h"
#include "collectives/control/verdict.h"

namespace annulus::c_api {

// Records a failure of this call alone. `rank` is the caller's on its communicator, -1 when there is none.
void RecordRefusal(const Status& status, int rank, const char* collective, const std::string& label,
                   const char* advice);
// Records a failure of that scope (ANNULUS_SCOPE_...), where there is no memory for words.
void RecordWithoutWords(Code code, int32_t scope = ANNULUS_SCOPE_CALL) noexcept;

// What to do when a call on a communicator was refused, and when another call was.
const char* AdviceFor(Code code);
const char* AdviceWithout(Code code);

// Records a failure that ended a communicator.
void RecordVerdict(const Verdict& verdict, const std::string& label);

// The verdict's parts, which point into it.
annulus_error_t PartsOf(const Verdict& verdict);

// What was recorded last; its texts stay valid until the thread's next failure.
annulus_error_t LastError();

}  // namespace annulus::c_api
