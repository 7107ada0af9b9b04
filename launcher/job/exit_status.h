// Exit statuses of annulus-run's own, beside those of ranks and 128 + signal.
//
// Threads: constants.
#pragma once

namespace annulus {

constexpr int kExitUsage = 2;
constexpr int kExitTimeout = 124;        // As timeout(1).
constexpr int kExitCannotLaunch = 125;   // As env(1): the launcher itself failed.
constexpr int kExitCannotExecute = 126;  // As the shell: found, but not to be run.
constexpr int kExitNotFound = 127;       // As the shell.
constexpr int kExitHostLost = 255;       // As ssh: a host cannot be reached, or not any more.

}  // namespace annulus
