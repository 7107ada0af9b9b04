#include "collectives/launcher/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "base/options.h"
#include "collectives/annulus.h"

namespace annulus {
namespace {

constexpr int kMaxRanks = 1024;  // Each takes a process and two pipes of one machine.
constexpr int64_t kMaxTimeoutS = 30 * 86'400;

// What annulus-run decides for each rank; -x must not contradict it.
constexpr const char* kOwnVariables[] = {"ANNULUS_RANK", "ANNULUS_SIZE", "ANNULUS_LOCAL_RANK", "ANNULUS_LOCAL_SIZE",
                                         "ANNULUS_RENDEZVOUS"};

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

std::optional<int> TakeVariables(const std::vector<std::string>& assignments, Arguments* arguments) {
  for (const std::string& assignment : assignments) {
    const size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Refuse("-x " + assignment + " is not NAME=VALUE (variables that are set already are passed on anyway)");
    }
    const std::string name = assignment.substr(0, equals);
    if (name == "ANNULUS_JOB_KEY") {
      return Refuse(
          "-x ANNULUS_JOB_KEY would show the key to everybody who lists processes; set it in the environment");
    }
    if (std::ranges::any_of(kOwnVariables, [&](const char* own) { return name == own; })) {
      return Refuse("-x " + name + " is refused, as annulus-run sets it itself");
    }
    arguments->variables.emplace_back(name, assignment.substr(equals + 1));
  }
  return std::nullopt;
}

}  // namespace

std::optional<int> ParseArguments(int argc, const char* const* argv, Arguments* arguments) {
  CLI::App app{
      "Runs NP copies of a program on this machine as the ranks of one Annulus job. Output is prefixed with \"[rank] "
      "\". "
      "The first rank that fails ends all others, and its status becomes annulus-run's.\n\n"
      "annulus-run -np NP [-x NAME=VALUE ...] [--no-prefix] [--timeout SECONDS] [--] program [arguments ...]",
      "annulus-run"};
  app.prefix_command();  // What follows the program's name is the program's.
  std::vector<std::string> assignments;
  bool no_prefix = false;
  bool settings = false;
  bool version = false;
  app.add_option("-n,--np", arguments->nranks, "Number of ranks, also written -np")
      ->check(CLI::Range(1, kMaxRanks))
      ->option_text("NP");
  app.add_option("-x", assignments, "Set a variable for every rank; may be repeated")
      ->allow_extra_args(false)
      ->option_text("NAME=VALUE");
  app.add_flag("--no-prefix", no_prefix, "Leave standard output and error as they are");
  app.add_option("--timeout", arguments->timeout_s, "End the job after that long, with status 124")
      ->check(CLI::Range(int64_t{1}, kMaxTimeoutS))
      ->option_text("SECONDS");
  app.add_flag("--settings", settings, "List the ANNULUS_* variables and exit");
  app.add_flag("--version", version, "Show the version and exit");

  // CLI11 knows no long options with one dash. It takes the words from last to first.
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
  if (version) return PrintVersion();
  if (settings) return PrintSettings();

  std::vector<std::string> rest = app.remaining();
  const bool marked = !rest.empty() && rest[0] == "--";
  if (marked) rest.erase(rest.begin());
  if (!marked && !rest.empty() && rest[0].starts_with('-')) return Refuse("unknown option " + rest[0]);
  if (arguments->nranks == 0) return Refuse("-np is missing");
  if (rest.empty()) return Refuse("the program to run is missing");
  // The words as given: a "-np" among the program's own arguments is not ours.
  arguments->command.assign(argv + argc - rest.size(), argv + argc);
  arguments->prefix = !no_prefix;
  return TakeVariables(assignments, arguments);
}

}  // namespace annulus
