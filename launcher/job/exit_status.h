// Exit statuses that annulus-run itself produces, beside those of ranks and 128 + signal.
//
// Threads: constants.
#pragma once

namespace annulus {

constexpr int kExitUsage = 2;
constexpr int kExitTimeout = 124;        // Like timeout(1).
constexpr int kExitCannotLaunch = 125;   // Like env(1): the launcher itself failed, or could not write output.
constexpr int kExitCannotExecute = 126;  // Like the shell: found, but not executable.
constexpr int kExitNotFound = 127;       // Like the shell.
constexpr int kExitHostLost = 255;       // Like ssh: a host cannot be reached, or was lost.

}  // namespace annulus
