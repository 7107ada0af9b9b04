// Setup: the parts of a communicator that exist from its creation to its end, and their creation: the ranks meet,
// exchange the addresses on which they listen, agree on transports, connect the links, and start the control thread.
//
// Threads: Establish is called by one thread; see each member for the rest.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/control/control.h"
#include "collectives/core/options.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/waiter.h"
#include "collectives/membership/core_set.h"
#include "collectives/membership/membership.h"
#include "collectives/observe/board_claim.h"
#include "collectives/observe/monitor.h"
#include "collectives/observe/trace_file.h"
#include "transport/reactor.h"
#include "transport/select/select.h"

namespace annulus {

struct BootstrapConfig;
struct BootstrapResult;

PlanSettings PlanSettingsOf(const Options& options);

class MemoryDomains;
class MemoryRegistry;
class RequestTable;

// What a communicator uses but does not own: the objects of the whole process.
struct Resources {
  RequestTable* requests = nullptr;
  const MemoryRegistry* memory = nullptr;   // Memory that peers may read in place; null: none.
  MemoryDomains* domains = nullptr;         // Where users' buffers may lie; null: host memory only.
  TransportList transports = Transports();  // The same on all ranks.
};

class Setup {
 public:
  // If set, called regularly while the ranks meet; if it fails, the meeting ends.
  using GiveUp = std::function<Status()>;

  // Joins the ranks of `membership` as `options`, which must be valid, say, over those transports of `resources` that
  // they allow. Blocks up to options.connect_timeout_ms. Errors: kInvalidArgument, kTimeout with the missing ranks,
  // kMismatch of settings, kAuth, kUnsupported, kSystem; the status that give_up returned.
  static Status Establish(const Options& options, const Membership& membership, const Resources& resources,
                          const GiveUp& give_up, std::unique_ptr<Setup>* setup);

  ~Setup();

  const Options& options() const { return options_; }
  const Resources& resources() const { return resources_; }
  int rank() const { return static_cast<int>(options_.rank); }
  int nranks() const { return membership_.nranks(); }
  const Membership& membership() const { return membership_; }
  const Topology& topology() const { return membership_.topology(); }
  int local_rank() const { return local_.rank; }
  int local_size() const { return local_.size; }
  const std::string& local_host() const { return local_host_; }
  // The communicator's random number, the same on all ranks; 0 when there is one rank only.
  uint64_t job() const { return job_; }
  const PlanSettings& plan() const { return plan_; }
  const WaitPolicy& wait_policy() const { return wait_policy_; }

  Monitor* monitor() { return &monitor_; }
  // Null when there is no trace.
  TraceFile* trace_file() { return trace_file_.get(); }
  Reactor* reactor() { return &reactor_; }
  const Links& links() const { return *links_; }
  // Null when there is one rank only.
  Control* control() { return control_.get(); }

  // Tells annulus-run, if it started this process, which rank the verdict names: this process may exit next.
  void TellLauncher(const Verdict& verdict) const;

  // Closes all links, so that threads waiting at their other ends fail too. Called by the thread that drives them,
  // which must not use them any more. Does not wait for a rank that the verdict says is lost. Idempotent and bounded in
  // time.
  void CloseLinks(const Verdict& verdict) { links_->Close(verdict.code == Code::kPeerLost ? verdict.rank : -1); }

  // Says goodbye and closes all links. Idempotent and bounded in time. No thread may be driving the links.
  void Close();

 private:
  Setup(const Options& options, const Membership& membership, const Resources& resources);

  // A trace that cannot be written is logged, and fails nothing.
  void OpenTrace();
  void ClaimBoard();
  Status Meet(const GiveUp& give_up, Deadline deadline);
  Status MeetAt(BootstrapConfig* config, BootstrapResult* met) const;
  Status Listen(Member* own);
  // Takes over what the ranks have said of themselves.
  Status Learn(const std::vector<std::string>& blobs);
  // The verdict as a status, OK while there is none.
  Status Verdicted() const;
  Status ConnectLinks(const ConnectContext& context);
  Status ChooseLinks(std::vector<std::vector<LinkRequest>>* wanted) const;
  void NoteLink(const Endpoint& endpoint, const char* transport, const LinkRequest& link);
  void LogLink(const Endpoint& endpoint, const char* transport, const LinkRequest& link) const;
  TransportConfig MakeTransportConfig() const;

  const Options options_;
  const Resources resources_;
  Membership membership_;  // Does not change once the ranks have met.
  PlanSettings plan_;
  WaitPolicy wait_policy_;
  const CoreSet cores_;
  int host_cores_;  // Number of cores of all ranks of this host.
  std::string host_id_;
  std::string local_host_;
  uint64_t job_ = 0;
  LocalPlace local_;
  // The next two outlive the monitor.
  std::unique_ptr<TraceFile> trace_file_;
  std::unique_ptr<BoardClaim> board_;
  Monitor monitor_;
  Reactor reactor_;                                     // Outlives what is registered with it.
  std::vector<std::unique_ptr<Transport>> transports_;  // By index in the list; null = off.
  std::unique_ptr<Links> links_;
  std::unique_ptr<Control> control_;
};

}  // namespace annulus
