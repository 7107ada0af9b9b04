// Starting the library's own threads.
//
// Threads: any.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace annulus {

// Starts a thread that gets no signals: the program's own threads handle those. `what` names the thread in the error.
// Errors: kSystem. Lets std::bad_alloc through.
Status StartThread(const char* what, std::function<void()> body, std::thread* thread);

}  // namespace annulus
