// ProcessState: what Annulus keeps for the whole process, and who owns it. The C API makes it so: its handles and its
// registered memory belong to no communicator. Communicators are handed references to it.
//
// Two more things are the process's, each kept where it is used: the log level (base/log.h), which annulus_comm_create
// sets, and the strings that configurations point to (config.cc).
//
// Threads: any.
#pragma once

#include "collectives/comm/request_table.h"
#include "transport/memory/memory.h"

namespace annulus::c_api {

struct ProcessState {
  RequestTable requests;
  MemoryRegistry memory;
};

// Never destroyed: handles may be asked for, and memory freed, while the process ends.
ProcessState& OfProcess();

}  // namespace annulus::c_api
