#include "collectives/core/options.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/secret.h"

namespace annulus {
namespace {

constexpr std::string_view kPrefix = "ANNULUS_";

// Variables of this project that are not settings of a communicator.
constexpr const char* kWatchVariable = "ANNULUS_WATCH";
constexpr const char* kVerdictsVariable = "ANNULUS_VERDICTS";
constexpr const char* kRendezvousFromVariable = "ANNULUS_RENDEZVOUS_FROM";
constexpr std::array kOtherVariables{kWatchVariable, kVerdictsVariable, kRendezvousFromVariable};

// Rank and size, each "must be below" the other of a pair. Values in range; -1 is "not known".
Status CheckRanks(const Options& options) {
  const std::string source = options.launcher.empty() ? "" : " (from " + options.launcher + ")";
  if (options.rank < 0 || options.size < 0) {
    return Status::Invalid(std::string(options.rank < 0 ? "rank (ANNULUS_RANK)" : "size (ANNULUS_SIZE)") +
                           " is not known; start the program by annulus-run, "
                           "torchrun, mpirun or srun, or set both "
                           "ANNULUS_RANK and ANNULUS_SIZE");
  }
  const auto pair = [&](const char* low, int64_t low_value, const char* high, int64_t high_value,
                        bool equal) -> Status {
    if (low_value < high_value || (equal && low_value == high_value)) return {};
    return Status::Invalid(std::string(low) + " is " + std::to_string(low_value) + ", but " + high + " is " +
                           std::to_string(high_value) + source + "; it must be " + (equal ? "at most that" : "lower"));
  };
  ANNULUS_RETURN_IF_ERROR(pair("rank (ANNULUS_RANK)", options.rank, "size (ANNULUS_SIZE)", options.size, false));
  if (options.local_size >= 0) {
    ANNULUS_RETURN_IF_ERROR(
        pair("local_size (ANNULUS_LOCAL_SIZE)", options.local_size, "size (ANNULUS_SIZE)", options.size, true));
  }
  if (options.local_rank < 0) return {};
  const bool known = options.local_size >= 0;
  return pair("local_rank (ANNULUS_LOCAL_RANK)", options.local_rank,
              known ? "local_size (ANNULUS_LOCAL_SIZE)" : "size (ANNULUS_SIZE)",
              known ? options.local_size : options.size, false);
}

}  // namespace

Options::~Options() { explicit_bzero(job_key.data(), job_key.size()); }

const char* ProcessVariable(const char* variable) { return std::getenv(variable); }

Status ReadVariables(const EnvironmentLookup& lookup, Options* options) {
  for (const Setting& setting : Settings()) {
    const char* value = lookup(setting.variable);
    if (value == nullptr || *value == '\0') continue;
    const Secret text(value);
    ANNULUS_RETURN_IF_ERROR(SetFromText(setting, setting.variable, text, options));
  }
  return {};
}

Status ReadEnvironment(const EnvironmentLookup& lookup, Options* options) {
  Options read;
  ANNULUS_RETURN_IF_ERROR(ReadVariables(lookup, &read));
  ANNULUS_RETURN_IF_ERROR(ReadLauncher(lookup, &read));
  *options = std::move(read);
  return {};
}

Status ReadEnvironment(Options* options) { return ReadEnvironment(ProcessVariable, options); }

JobRun ReadRunOfProcess() { return ReadRun(ProcessVariable); }

JobRun JobRunOf(const Options& options) { return {options.run_id, static_cast<uint32_t>(options.restart)}; }

Status Validate(const Options& options) {
  for (const Setting& setting : Settings()) ANNULUS_RETURN_IF_ERROR(CheckValue(setting, options));
  ANNULUS_RETURN_IF_ERROR(CheckRanks(options));
  if (!options.tuning_file.empty() && options.tuning != Tuning::kMeasured) {
    return Status::Invalid("tuning_file (ANNULUS_TUNING_FILE) is " + options.tuning_file +
                           ", which nothing would read: set tuning (ANNULUS_TUNING) to measured");
  }
  if (options.size == 1) return {};
  if (options.rendezvous.empty()) {
    const std::string why =
        options.launcher.empty() ? "" : ", and " + options.launcher + " does not tell where rank 0 can be reached";
    return Status::Invalid("rendezvous (ANNULUS_RENDEZVOUS) is not known" + why +
                           "; set it on every rank to host:port of rank 0");
  }
  if (options.job_key.empty() && !options.insecure) {
    return Status::Invalid(
        "job_key (ANNULUS_JOB_KEY) is not set, so anybody could join; give "
        "every rank the same secret of at least " +
        std::to_string(SettingNamed("job_key").allowed.min) +
        " characters, or set insecure (ANNULUS_INSECURE) to 1 on a network "
        "that you trust");
  }
  if (options.encrypt == Encryption::kRequired && options.job_key.empty()) {
    return Status::Invalid(
        "encrypt (ANNULUS_ENCRYPT) is required, which needs a secret of the job: give every rank the same job_key "
        "(ANNULUS_JOB_KEY)");
  }
  return {};
}

const char* WatchVariable() { return ProcessVariable(kWatchVariable); }

const char* VerdictsVariable() { return ProcessVariable(kVerdictsVariable); }

const char* RendezvousFromVariable() { return ProcessVariable(kRendezvousFromVariable); }

std::vector<std::string> UnknownVariables(const char* const* environment) {
  return UnknownVariables(kPrefix, Settings(), kOtherVariables, environment);
}

void WarnOfUnknownVariables(int rank, int local_rank) {
  static std::atomic<bool> warned = false;
  if (warned.exchange(true) || local_rank > 0) return;
  std::string names;
  for (const std::string& name : UnknownVariables(environ)) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) return;
  Log(LogLevel::kWarn, rank,
      "unknown environment variables are ignored: %s; docs/tuning.md lists the "
      "known ones",
      names.c_str());
}

}  // namespace annulus
