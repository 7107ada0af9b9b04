// Split: forms new communicators from the ranks of an existing one.
//
// Threads: as for any collective of the parent.
#pragma once

#include <memory>

#include "collectives/comm/communicator.h"

namespace annulus {

// A collective of `parent`: ranks that give the same `colour` form a new communicator, ordered by (key, rank). *child
// stays null where colour < 0. The child has the settings of the parent except the tuning file, and may outlive it.
// Blocks up to the parent's timeout and then its connect timeout; less when the parent learns that a rank of the colour
// is gone. Errors: those of an allgather on the parent, which are also recorded for the parent; those of
// Communicator::Create.
Status Split(Communicator* parent, int colour, int key, std::unique_ptr<Communicator>* child);

}  // namespace annulus
