// annulus-run: runs the ranks of a job, on this machine or on several (docs/launchers.md).
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "launcher/job/arguments.h"
#include "launcher/job/job.h"
#include "launcher/local/guardian.h"
#include "launcher/local/supervisor.h"
#include "launcher/remote/agent.h"
#include "launcher/remote/agent_command.h"
#include "launcher/remote/coordinator.h"

namespace annulus {
namespace {

// Opens standard streams that the caller closed. Otherwise the next pipe or socket would take their place.
void OpenMissingStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);
  }
}

int RunHere(const RunArguments& arguments, const Job& job) {
  return RunGuarded([&](const GuardedContext& context) { return Supervisor(arguments, job, context).Run(); });
}

int RunOnHosts(const RunArguments& arguments, const Job& job) {
  // While suspended, this process would look lost to the agents.
  for (const int key : {SIGTSTP, SIGTTIN, SIGTTOU}) signal(key, SIG_IGN);
  return RunGuarded([&](const GuardedContext& context) { return Coordinator(arguments, job, context).Run(); });
}

int Main(int argc, char** argv) {
  OpenMissingStreams();
  if (argc == 2 && std::strcmp(argv[1], kAgentWord) == 0) {
    return RunGuarded([](const GuardedContext& context) { return Agent(context, environ).Run(); });
  }
  RunArguments arguments;
  if (const auto status = ParseArguments(argc, argv, &arguments)) return *status;
  const bool here = arguments.placements.empty();
  Job job;
  const Status status = here ? job.Prepare(arguments, environ) : job.PrepareForHosts(arguments, environ);
  if (!status.ok()) {
    std::fprintf(stderr, "annulus-run: %s\n", status.message().c_str());
    return status.code() == Code::kInvalidArgument ? kExitUsage : kExitCannotLaunch;
  }
  return here ? RunHere(arguments, job) : RunOnHosts(arguments, job);
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) { return annulus::Main(argc, argv); }
