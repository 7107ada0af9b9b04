// ProcessTree: everything that this process started, directly or not, found in /proc.
//
// The process must be a subreaper (PR_SET_CHILD_SUBREAPER). A process that loses its parent then becomes a child of
// this one, so no descendant can escape, not even into a session of its own.
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <vector>

namespace annulus {

// All descendants of this process that are not zombies, parents before children.
std::vector<pid_t> Descendants();

// Sends `signal` to each descendant. Returns how many there were.
int SignalDescendants(int signal);

// SIGKILLs and reaps all descendants, until none is left or `timeout_ms` has passed. Returns whether none is left.
bool KillDescendants(int timeout_ms);

}  // namespace annulus
