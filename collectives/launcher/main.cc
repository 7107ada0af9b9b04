// annulus-run: runs the ranks of a job on this machine (docs/launchers.md).
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "collectives/launcher/arguments.h"
#include "collectives/launcher/guardian.h"
#include "collectives/launcher/job.h"
#include "collectives/launcher/supervisor.h"

namespace {

// A standard stream that our caller closed would be the next pipe or socket that we open.
void OpenMissingStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);
  }
}

}  // namespace

int main(int argc, char** argv) {
  OpenMissingStreams();
  annulus::Arguments arguments;
  if (const auto status = annulus::ParseArguments(argc, argv, &arguments)) return *status;
  annulus::Job job;
  if (const annulus::Status status = job.Prepare(arguments, environ); !status.ok()) {
    std::fprintf(stderr, "annulus-run: %s\n", status.message().c_str());
    return status.code() == annulus::Code::kInvalidArgument ? annulus::kExitUsage : annulus::kExitCannotLaunch;
  }
  return annulus::RunGuarded(
      [&](const annulus::GuardedContext& context) { return annulus::Supervisor(arguments, job, context).Run(); });
}
