// Split: new communicators out of the ranks of one.
//
// Threads: as for any collective of the parent.
#pragma once

#include <memory>

#include "collectives/comm/communicator.h"

namespace annulus {

// A collective of `parent`: ranks that give the same `colour` form a new communicator, in the order of (key, rank).
// *child stays null where colour < 0. It has the parent's settings, but for the tuning file, and outlives it if need
// be. Blocks up to the parent's timeout and then its connect timeout; less when the parent learns that a rank of the
// colour is gone. Errors: those of an allgather on the parent, which are then the parent's; those of
// Communicator::Create.
Status Split(Communicator* parent, int colour, int key, std::unique_ptr<Communicator>* child);

}  // namespace annulus
