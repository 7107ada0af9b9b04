#include "base/launchers.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <sstream>
#include <utility>

#include "base/parse.h"
#include "base/text_file.h"

namespace annulus {
namespace {

constexpr int64_t kMaxRank = JobPlace::kMostRanks - 1;
constexpr int64_t kMaxPort = 65'535;

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;  // Null: a list per node (Slurm).
};

constexpr const char* kTorchrun = "torchrun";
constexpr const char* kSlurm = "Slurm";
constexpr const char* kHydra = "MPICH Hydra";
constexpr const char* kOpenMpi = "Open MPI";
constexpr const char* kHorovodrun = "horovodrun";

// In the order in which they are consulted: innermost first. A batch system's variables are also visible to the
// launchers that run inside it, so Slurm is last. SLURM_STEP_NUM_TASKS, unlike SLURM_NTASKS, is not set in the batch
// shell, where the program would wait for ranks that nobody started.
constexpr Launcher kLaunchers[] = {
    {kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {kHorovodrun, "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"},
    {kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {kHydra, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {kSlurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
};

class Reader {
 public:
  Reader(const EnvironmentLookup& lookup, JobPlace* place) : lookup_(lookup), place_(place) {}

  Status Read();
  // What Read() finds out about the run. Needs the place's run_id, if the user has set one.
  Status ReadRun();

 private:
  std::string Get(const char* variable) const;
  // The value of the first variable that is set, of two names for the same thing.
  std::string GetEither(const char* variable, const char* other) const;
  bool Has(const char* variable) const { return !Get(variable).empty(); }
  bool HasRanksOf(const Launcher& launcher) const { return Has(launcher.rank) && Has(launcher.size); }
  bool IsSlurmsOwn(const Launcher& launcher) const;
  Status GetNumber(const char* variable, int64_t min, int64_t max, int64_t* number) const;
  Status CheckBothOrNone(const char* variable, const char* other) const;

  Status ReadRanks();
  Status ReadRanksOf(const Launcher& launcher);
  Status ReadSlurmLocalSize();
  Status ReadRendezvous();
  Status ReadMaster();
  Status ReadSlurmRendezvous();
  std::string LocalJob() const;
  std::string DoubtOfRun(bool one_host) const;

  const EnvironmentLookup& lookup_;
  JobPlace* place_;
};

std::string Reader::Get(const char* variable) const {
  const char* value = lookup_(variable);
  return value == nullptr ? "" : value;
}

std::string Reader::GetEither(const char* variable, const char* other) const {
  const std::string value = Get(variable);
  return value.empty() ? Get(other) : value;
}

Status Reader::GetNumber(const char* variable, int64_t min, int64_t max, int64_t* number) const {
  const std::string value = Get(variable);
  int64_t parsed;
  if (!ParseNumber(value, &parsed) || parsed < min || parsed > max) {
    return Status::Invalid(std::string(variable) + " is \"" + value + "\"; allowed: a whole number from " +
                           std::to_string(min) + " to " + std::to_string(max));
  }
  *number = parsed;
  return {};
}

Status Reader::CheckBothOrNone(const char* variable, const char* other) const {
  if (Has(variable) == Has(other)) return {};
  if (!Has(variable)) std::swap(variable, other);
  return Status::Invalid(std::string(variable) + " is set but " + other + " is not; set both or neither");
}

Status Reader::Read() {
  ANNULUS_RETURN_IF_ERROR(ReadRanks());
  ANNULUS_RETURN_IF_ERROR(ReadRun());
  // One rank needs no rendezvous, so nothing about it can be wrong.
  if (!place_->rendezvous.empty() || place_->size <= 1) return {};
  return ReadRendezvous();
}

// srun also speaks MPICH's protocol (--mpi=pmi2) and then sets PMI_RANK, but its own variables say more about the job.
bool Reader::IsSlurmsOwn(const Launcher& launcher) const {
  return launcher.name == kHydra && !Has(launcher.local_rank) && Has("SLURM_STEP_NUM_TASKS") &&
         Get(launcher.rank) == Get("SLURM_PROCID") && Get(launcher.size) == Get("SLURM_STEP_NUM_TASKS");
}

Status Reader::ReadRanks() {
  if (place_->rank >= 0 && place_->size >= 0) {
    if (place_->launcher.empty()) place_->launcher = "the ANNULUS_* variables";
    return {};
  }
  ANNULUS_RETURN_IF_ERROR(CheckBothOrNone("ANNULUS_RANK", "ANNULUS_SIZE"));
  for (const Launcher& launcher : kLaunchers) {
    if (HasRanksOf(launcher) && !IsSlurmsOwn(launcher)) return ReadRanksOf(launcher);
  }
  // Half of a pair is an error only where no other launcher has both. SLURM_PROCID is in every batch shell.
  for (const Launcher& launcher : kLaunchers) {
    if (launcher.name != kSlurm) ANNULUS_RETURN_IF_ERROR(CheckBothOrNone(launcher.rank, launcher.size));
  }
  return {};
}

Status Reader::ReadRanksOf(const Launcher& launcher) {
  place_->launcher = launcher.name;
  int64_t size;
  int64_t rank;
  ANNULUS_RETURN_IF_ERROR(GetNumber(launcher.size, 1, kMaxRank + 1, &size));
  ANNULUS_RETURN_IF_ERROR(GetNumber(launcher.rank, 0, kMaxRank, &rank));
  if (rank >= size) {
    return Status::Invalid(std::string(launcher.rank) + " is " + Get(launcher.rank) + ", but " + launcher.size +
                           " is " + Get(launcher.size) + "; ranks run from 0 to size - 1");
  }
  if (place_->size < 0) place_->size = size;
  if (place_->rank < 0) place_->rank = rank;
  if (place_->local_rank < 0 && Has(launcher.local_rank)) {
    ANNULUS_RETURN_IF_ERROR(GetNumber(launcher.local_rank, 0, kMaxRank, &place_->local_rank));
  }
  if (place_->local_size >= 0) return {};
  if (launcher.local_size == nullptr) return ReadSlurmLocalSize();
  if (!Has(launcher.local_size)) return {};
  return GetNumber(launcher.local_size, 1, kMaxRank + 1, &place_->local_size);
}

Status Reader::ReadSlurmLocalSize() {
  const char* variable = Has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  if (!Has(variable) || !Has("SLURM_NODEID")) return {};
  int64_t node;
  ANNULUS_RETURN_IF_ERROR(GetNumber("SLURM_NODEID", 0, kMaxRank, &node));
  if (SlurmTasksAtNode(Get(variable), node, &place_->local_size)) return {};
  return Status::Invalid(std::string(variable) + " is \"" + Get(variable) +
                         "\"; allowed: a list such as 4(x2),3 with an entry "
                         "for SLURM_NODEID, which is " +
                         std::to_string(node));
}

Status Reader::ReadRendezvous() {
  if (Has("MASTER_ADDR") || Has("MASTER_PORT")) return ReadMaster();
  if (place_->local_size == place_->size) {
    const std::string job = LocalJob();
    if (!job.empty()) place_->rendezvous = FormatAddress("127.0.0.1", DerivedPort(job));
    return {};
  }
  return place_->launcher == kSlurm ? ReadSlurmRendezvous() : Status();
}

// Uses the port after MASTER_PORT: torchrun's agent may listen at MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE),
// and where it does not, the training framework on rank 0 does.
Status Reader::ReadMaster() {
  ANNULUS_RETURN_IF_ERROR(CheckBothOrNone("MASTER_ADDR", "MASTER_PORT"));
  int64_t port;
  ANNULUS_RETURN_IF_ERROR(GetNumber("MASTER_PORT", 1, kMaxPort - 1, &port));
  const std::string host = Get("MASTER_ADDR");
  const std::string address = FormatAddress(host, static_cast<int>(port) + 1);
  std::string parsed_host;
  int parsed_port;
  if (!ParseAddress(address, &parsed_host, &parsed_port)) {
    return Status::Invalid("MASTER_ADDR is \"" + host + "\"; allowed: a host name or an IP address");
  }
  place_->rendezvous = address;
  return {};
}

// An id that distinguishes this job from others on its only host; "" when the launcher provides none.
std::string Reader::LocalJob() const {
  std::string id;
  if (place_->launcher == kOpenMpi) id = GetEither("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid");
  if (place_->launcher == kHydra) id = AncestorNamed("hydra_pmi_proxy");  // One per job and host; Hydra exports no id.
  if (place_->launcher == kHorovodrun) id = Get("HOROVOD_GLOO_RENDEZVOUS_PORT");
  if (place_->launcher == kSlurm && Has("SLURM_JOB_ID")) {
    id = Get("SLURM_JOB_ID") + "." + GetEither("SLURM_STEP_ID", "SLURM_STEPID");
  }
  return id.empty() ? "" : place_->launcher + " " + id;
}

// torchrun calls a run "none" unless it is given a name, so each job has that; and it restarts ranks only where it is
// allowed to.
std::string Reader::DoubtOfRun(bool one_host) const {
  if (place_->launcher == kTorchrun) {
    if (place_->run_id.empty() || place_->run_id == "none") return "torchrun was given no --rdzv-id";
    const bool restarts = !Has("TORCHELASTIC_MAX_RESTARTS") || Get("TORCHELASTIC_MAX_RESTARTS") != "0";
    if (!one_host && restarts) return "torchrun's agents do not count restarts together";
  }
  if (place_->launcher == kHydra && place_->run_id.empty()) return "MPICH names no job on several hosts";
  return "";
}

Status Reader::ReadRun() {
  if (!place_->run_id.empty()) return {};
  const bool one_host = place_->local_size == place_->size;
  const char* restarts = nullptr;
  if (place_->launcher == kTorchrun) {
    place_->run_id = ShortRunId(Get("TORCHELASTIC_RUN_ID"));
    // Its agents, one on each host, count their own restarts, and not those that others ask for.
    if (one_host) restarts = "TORCHELASTIC_RESTART_COUNT";
  } else if (place_->launcher != kHydra || one_host) {
    place_->run_id = ShortRunId(LocalJob());
    if (place_->launcher == kSlurm) restarts = "SLURM_RESTART_COUNT";
  }
  place_->run_doubt = DoubtOfRun(one_host);
  if (restarts == nullptr || !Has(restarts)) return {};
  return GetNumber(restarts, 0, std::numeric_limits<int32_t>::max(), &place_->restart);
}

Status Reader::ReadSlurmRendezvous() {
  const char* variable = Has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_NODELIST";
  const std::string job = LocalJob();
  if (!Has(variable) || job.empty()) return {};
  std::string host;
  if (!SlurmFirstHost(Get(variable), &host)) {
    return Status::Invalid(std::string(variable) + " is \"" + Get(variable) +
                           "\"; allowed: a list such as node[01-04,7],x");
  }
  place_->rendezvous = FormatAddress(host, DerivedPort(job));
  return {};
}

// The command name, parent and start time of a process. False when it is gone.
bool ReadProcess(pid_t pid, std::string* name, pid_t* parent, std::string* start_time) {
  // The process may end meanwhile: then there is less.
  const std::string line = ReadTextFile("/proc/" + std::to_string(pid) + "/stat");
  // "pid (name) state parent ...": the name may contain anything, so the last parenthesis counts.
  const size_t open = line.find('(');
  const size_t close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return false;
  *name = line.substr(open + 1, close - open - 1);
  std::istringstream fields(line.substr(close + 1));
  constexpr int kParentField = 4;  // proc(5) counts from 1; the name is 2.
  constexpr int kStartTimeField = 22;
  std::string field;
  for (int i = 3; i <= kStartTimeField && fields >> field; ++i) {
    if (i == kParentField) *parent = static_cast<pid_t>(std::stol(field));
    if (i == kStartTimeField) *start_time = field;
  }
  return static_cast<bool>(fields);
}

}  // namespace

Status ReadLauncher(const EnvironmentLookup& lookup, JobPlace* place) { return Reader(lookup, place).Read(); }

JobRun ReadRun(const EnvironmentLookup& lookup) {
  const auto value = [&](const char* variable) -> std::string {
    const char* found = lookup(variable);
    return found == nullptr ? "" : found;
  };
  JobPlace place;
  place.run_id = ShortRunId(value("ANNULUS_RUN_ID"));
  // A launcher whose ranks are not used says nothing of their run.
  const bool own_ranks = !value("ANNULUS_RANK").empty() && !value("ANNULUS_SIZE").empty();
  if (!own_ranks && !ReadLauncher(lookup, &place).ok()) return {};
  return {place.run_id, static_cast<uint32_t>(place.restart)};
}

bool SlurmTasksAtNode(const std::string& tasks_per_node, int64_t node, int64_t* tasks) {
  std::istringstream groups(tasks_per_node);
  std::string group;
  int64_t first = 0;  // Node at which the group starts.
  while (std::getline(groups, group, ',')) {
    int64_t repeated = 1;
    const size_t open = group.find("(x");
    if (open != std::string::npos) {
      if (group.back() != ')') return false;
      if (!ParseNumber(group.substr(open + 2, group.size() - open - 3), &repeated)) return false;
      group.resize(open);
    }
    int64_t count;
    if (!ParseNumber(group, &count) || count < 1 || count > kMaxRank + 1) return false;
    if (repeated < 1 || repeated > kMaxRank + 1) return false;
    if (node < first + repeated) {
      *tasks = count;
      return true;
    }
    first += repeated;
  }
  return false;
}

bool SlurmFirstHost(const std::string& node_list, std::string* host) {
  // Up to the first comma outside brackets, each bracket standing for its first entry: "r[1-2]n[07,9],x" -> r1n07.
  std::string first;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      first += node_list[i];
      continue;
    }
    const size_t close = node_list.find(']', i);
    if (close == std::string::npos) return false;
    const size_t entry_end = node_list.find_first_of("-,]", i + 1);
    if (entry_end == i + 1) return false;
    first += node_list.substr(i + 1, entry_end - i - 1);
    i = close;
  }
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_';
  };
  if (first.empty() || !std::ranges::all_of(first, allowed)) return false;
  *host = first;
  return true;
}

int DerivedPort(const std::string& job) {
  constexpr uint32_t kFirst = 20'000;
  constexpr uint32_t kCount = 12'000;
  uint32_t hash = 2'166'136'261u;  // FNV-1a, 32 bits.
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16'777'619u;
  return static_cast<int>(kFirst + hash % kCount);
}

std::string AncestorNamed(const std::string& name) {
  constexpr int kMaxDepth = 64;  // Far deeper than any job's chain of processes.
  pid_t pid = getppid();
  for (int depth = 0; depth < kMaxDepth && pid > 1; ++depth) {
    std::string process_name;
    std::string start_time;
    pid_t parent = 0;
    if (!ReadProcess(pid, &process_name, &parent, &start_time)) return "";
    if (process_name == name) return std::to_string(pid) + "." + start_time;
    pid = parent;
  }
  return "";
}

}  // namespace annulus
