// Starting threads of the library's own.
//
// Threads: any.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace annulus {

// Starts a thread that gets no signals: those are the business of the program's own threads. `what` names it in the
// error. Errors: kSystem.
Status StartThread(const char* what, std::function<void()> body, std::thread* thread);

}  // namespace annulus
