#include "launcher/job/job.h"

#include <sys/random.h>

#include <array>
#include <cerrno>

#include "base/parse.h"
#include "collectives/core/options.h"
#include "transport/port_handout.h"

namespace annulus {
namespace {

// Placeholder for the rendezvous while it is not known.
constexpr char kSomewhere[] = "127.0.0.1:1";

Status CheckSettings(const Variables& shared, int nranks) {
  Variables variables = shared;
  variables["ANNULUS_RANK"] = variables["ANNULUS_LOCAL_RANK"] = "0";
  variables["ANNULUS_SIZE"] = variables["ANNULUS_LOCAL_SIZE"] = std::to_string(nranks);
  variables.emplace("ANNULUS_RENDEZVOUS", kSomewhere);
  const auto lookup = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  Options options;
  ANNULUS_RETURN_IF_ERROR(ReadEnvironment(lookup, &options));
  return Validate(options);
}

}  // namespace

namespace {

// `kBytes` random bytes in hexadecimal; "" when the system has no randomness available.
template <size_t kBytes>
std::string RandomHex() {
  std::array<unsigned char, kBytes> random;
  size_t filled = 0;
  while (filled < random.size()) {
    const ssize_t got = getrandom(random.data() + filled, random.size() - filled, 0);
    if (got < 0 && errno != EINTR) return "";
    if (got > 0) filled += static_cast<size_t>(got);
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : random) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

std::string MakeJobKey() { return RandomHex<32>(); }

Status Job::NameRun() {
  std::string& run = shared_["ANNULUS_RUN_ID"];
  run = RandomHex<8>();
  return run.empty() ? Status::System("cannot name the run", errno) : Status();
}

Status Job::AddAssignments(const RunArguments& arguments, const Variables& environment) {
  for (const Assignment& assignment : arguments.variables) {
    const auto here = environment.find(assignment.name);
    if (!assignment.value && here == environment.end()) {
      return Status::Invalid("-x " + assignment.name + " passes on a variable that is not set here");
    }
    shared_[assignment.name] = assignment.value ? *assignment.value : here->second;
  }
  return {};
}

Status Job::EnsureKey() {
  std::string& key = shared_["ANNULUS_JOB_KEY"];
  if (key.empty()) key = MakeJobKey();
  return key.empty() ? Status::System("cannot make a job key", errno) : Status();
}

Status Job::Prepare(const RunArguments& arguments, const char* const* environment) {
  nranks_ = arguments.nranks;
  const Variables variables = ReadVariables(environment);
  shared_ = variables;
  ANNULUS_RETURN_IF_ERROR(AddAssignments(arguments, variables));
  shared_.erase(PortHandout::kVariable);  // Set by an annulus-run around this one.
  ANNULUS_RETURN_IF_ERROR(port_.Reserve("127.0.0.1"));
  shared_["ANNULUS_RENDEZVOUS"] = FormatAddress("127.0.0.1", port_.port());
  ANNULUS_RETURN_IF_ERROR(EnsureKey());
  ANNULUS_RETURN_IF_ERROR(NameRun());
  return CheckSettings(shared_, nranks_);
}

Status Job::PrepareForHosts(const RunArguments& arguments, const char* const* environment) {
  nranks_ = arguments.nranks;
  const Variables variables = ReadVariables(environment);
  for (const auto& [name, value] : variables) {
    if (name.starts_with("ANNULUS_")) shared_.emplace(name, value);
  }
  for (const char* own : kOwnVariables) shared_.erase(own);
  shared_.erase(PortHandout::kVariable);
  shared_.erase("ANNULUS_HOST_ID");  // It names this host; hosts that all got it would take themselves for one.
  ANNULUS_RETURN_IF_ERROR(AddAssignments(arguments, variables));
  ANNULUS_RETURN_IF_ERROR(EnsureKey());
  ANNULUS_RETURN_IF_ERROR(NameRun());
  return CheckSettings(shared_, nranks_);
}

std::vector<std::string> Job::EnvironmentOf(int rank) const {
  return RankEnvironment(shared_, {rank, nranks_, rank, nranks_});
}

}  // namespace annulus
