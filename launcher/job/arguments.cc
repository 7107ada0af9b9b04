#include "launcher/job/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <sstream>

#include "collectives/annulus.h"
#include "collectives/core/options.h"

namespace annulus {
namespace {

constexpr int64_t kMaxTimeoutS = 30 * 86'400;
constexpr int64_t kMaxLinkTimeoutS = 3600;

constexpr char kHelp[] =
    "Runs a program as the ranks of one Annulus job: NP copies on this machine, or on the hosts of -H, which it "
    "reaches "
    "by ssh. Output is prefixed with \"[rank] \". The first rank that fails ends all others, and its status becomes "
    "annulus-run's.\n\n"
    "annulus-run -np NP [options] [--] program [arguments ...]\n"
    "annulus-run -H host1:2,host2:2 [options] [--] program [arguments ...]";

int Refuse(const std::string& message) {
  std::fprintf(stderr, "annulus-run: %s; see annulus-run --help\n", message.c_str());
  return kExitUsage;
}

int PrintSettings() {
  for (const Setting& setting : Settings()) {
    const std::string unset = DefaultText(setting);
    std::printf("%-27s %s\n%27s allowed: %s; default: %s\n", setting.variable, setting.help, "",
                AllowedText(setting).c_str(), unset.empty() ? "empty" : unset.c_str());
  }
  return 0;
}

int PrintVersion() {
  std::printf("annulus-run %d.%d.%d\n", ANNULUS_VERSION_MAJOR, ANNULUS_VERSION_MINOR, ANNULUS_VERSION_PATCH);
  return 0;
}

// Options that need further parsing.
struct Words {
  std::vector<std::string> assignments;
  std::string hosts;
  std::string host_file;
  std::string ssh = "ssh";
  std::string bind_to = "cores";
  bool no_prefix = false;
  bool settings = false;
  bool version = false;
};

void AddOptions(CLI::App* app, RunArguments* arguments, Words* words) {
  app->prefix_command();  // Words after the program's name belong to the program.
  app->add_option("-n,--np", arguments->nranks,
                  "Number of ranks, also written -np; with -H the slots of all hosts unless given")
      ->check(CLI::Range(1, kMaxRanks))
      ->option_text("NP");
  app->add_option("-x", words->assignments,
                  "Set a variable for every rank, or pass on the one that is set here; may be repeated")
      ->allow_extra_args(false)
      ->option_text("NAME[=VALUE]");
  app->add_flag("--no-prefix", words->no_prefix, "Leave standard output and error as they are");
  app->add_option("--timeout", arguments->timeout_s, "End the job after that long, with status 124")
      ->check(CLI::Range(int64_t{1}, kMaxTimeoutS))
      ->option_text("SECONDS");
  app->add_flag("--watch", arguments->watch,
                "Show every second what each rank does and whom it waits for; not with other hosts");
  app->add_option(
         "--bind-to", words->bind_to,
         "cores, the default: each rank runs on a share of its host's cores, unless there are fewer cores than "
         "ranks. none: on any")
      ->check(CLI::IsMember({"cores", "none"}))
      ->option_text("cores|none");
  app->add_option("-H,--host", words->hosts, "Hosts and their numbers of ranks; ranks are given out in this order")
      ->option_text("HOST[:N],...");
  app->add_option("--hostfile", words->host_file,
                  "The same from a file with a host on each line: \"host slots=N\" or host:N")
      ->option_text("FILE");
  app->add_option("--ssh", words->ssh, "The command that leads to a host, with its options; default: ssh")
      ->option_text("\"COMMAND\"");
  app->add_option("--remote-path", arguments->remote_path,
                  "Where annulus-run is on the other hosts; default: where it is here")
      ->option_text("PATH");
  app->add_option("--rendezvous-host", arguments->rendezvous_host,
                  "Address at which the other hosts reach the first; default: the one that ssh used")
      ->option_text("ADDRESS");
  app->add_option("--link-timeout", arguments->link_timeout_s,
                  "Take a host of which so long nothing was heard for lost; default: 20")
      ->check(CLI::Range(int64_t{1}, kMaxLinkTimeoutS))
      ->option_text("SECONDS");
  app->add_flag("--settings", words->settings, "List the ANNULUS_* variables and exit");
  app->add_flag("--version", words->version, "Show the version and exit");
}

std::optional<int> ReadAssignments(const std::vector<std::string>& assignments, RunArguments* arguments) {
  for (const std::string& assignment : assignments) {
    const size_t equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    if (name.empty()) return Refuse("-x " + assignment + " is neither NAME=VALUE nor NAME");
    if (name == "ANNULUS_JOB_KEY" && equals != std::string::npos) {
      return Refuse(
          "-x ANNULUS_JOB_KEY would show the key to everybody who lists processes; set it in the environment");
    }
    if (std::ranges::any_of(kOwnVariables, [&](const char* own) { return name == own; })) {
      return Refuse("-x " + name + " is refused, as annulus-run sets it itself");
    }
    arguments->variables.push_back({name, std::nullopt});
    if (equals != std::string::npos) arguments->variables.back().value = assignment.substr(equals + 1);
  }
  return std::nullopt;
}

std::optional<int> ReadHosts(const Words& words, RunArguments* arguments) {
  if (words.hosts.empty() && words.host_file.empty()) {
    if (arguments->nranks == 0) return Refuse("-np is missing");
    return std::nullopt;
  }
  if (!words.hosts.empty() && !words.host_file.empty()) return Refuse("-H and --hostfile exclude each other");
  std::vector<HostSlots> hosts;
  Status status = words.hosts.empty() ? ReadHostFile(words.host_file, &hosts) : ParseHosts(words.hosts, &hosts);
  if (status.ok()) status = PlaceRanks(hosts, arguments->nranks, &arguments->placements);
  if (!status.ok()) return Refuse(status.message());
  const Placement& last = arguments->placements.back();
  arguments->nranks = last.first_rank + last.nranks;
  if (arguments->nranks > kMaxRanks) {
    return Refuse("the hosts have " + std::to_string(arguments->nranks) + " slots; allowed: at most " +
                  std::to_string(kMaxRanks));
  }
  if (arguments->placements.size() == 1 && last.here) arguments->placements.clear();
  arguments->ssh.clear();
  std::istringstream parts(words.ssh);
  for (std::string part; parts >> part;) arguments->ssh.push_back(part);
  if (arguments->ssh.empty()) return Refuse("--ssh is empty");
  return std::nullopt;
}

}  // namespace

std::optional<int> ParseArguments(int argc, const char* const* argv, RunArguments* arguments) {
  CLI::App app{kHelp, "annulus-run"};
  Words given;
  AddOptions(&app, arguments, &given);

  // CLI11 does not support long options with one dash. It takes the words from last to first.
  std::vector<std::string> words(argv + 1, argv + argc);
  std::ranges::replace(words, "-np", "--np");
  std::ranges::reverse(words);
  try {
    app.parse(words);
  } catch (const CLI::Success& wanted) {
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    return Refuse(error.what());
  }
  if (given.version) return PrintVersion();
  if (given.settings) return PrintSettings();

  std::vector<std::string> rest = app.remaining();
  const bool marked = !rest.empty() && rest[0] == "--";
  if (marked) rest.erase(rest.begin());
  if (!marked && !rest.empty() && rest[0].starts_with('-')) return Refuse("unknown option " + rest[0]);
  if (const auto status = ReadHosts(given, arguments)) return status;
  if (arguments->watch && !arguments->placements.empty()) return Refuse("--watch shows ranks of this machine only");
  if (rest.empty()) return Refuse("the program to run is missing");
  // The words as given: a "-np" among the program's own arguments is not an option of annulus-run.
  arguments->command.assign(argv + argc - rest.size(), argv + argc);
  arguments->prefix = !given.no_prefix;
  arguments->bind = given.bind_to == "cores";
  return ReadAssignments(given.assignments, arguments);
}

}  // namespace annulus
