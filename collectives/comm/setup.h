// Setup: the parts of a communicator that exist from its creation to its end, and their creation: the ranks meet, start
// their control threads, choose a transport for each pair, and connect the links.
//
// Threads: Establish is called by one thread; see each member for the rest.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/control/control.h"
#include "collectives/core/options.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/waiter.h"
#include "collectives/membership/meeting.h"
#include "collectives/membership/membership.h"
#include "collectives/observe/telemetry.h"
#include "transport/reactor.h"
#include "transport/select/select.h"
#include "transport/select/transport_set.h"

namespace annulus {

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
  std::string sysfs = "/sys";               // Where the kernel tells of this machine's devices.
};

// What a rank uses of its machine.
struct MachineUse {
  std::string local_host;   // Address of the machine as its peers reach it.
  int turn = 0;             // As TransportConfig::turn.
  int gpu = -1;             // Number of its GPU as the process counts them; -1: none.
  std::string gpu_address;  // Where that is on PCI, "0000:17:00.0"; "" when it is not known.
  std::string gpu_name;
  std::string devices;  // As TransportSet::Offer::devices.
};

class Setup final : private TransportSet::Owner {
 public:
  using GiveUp = Meeting::GiveUp;

  // How long to wait for the other ranks, beside options.connect_timeout_ms.
  struct Patience {
    GiveUp give_up = nullptr;  // Asked until the communicator is made.
    Deadline deadline = kNoDeadline;
    // If set, called on ranks other than 0 when the ranks have met, and before any of them has its communicator.
    std::function<void()> met = nullptr;
  };

  // Joins the ranks of `membership` as `options`, which must be valid, say, over those transports of `resources` that
  // they allow. Blocks up to options.connect_timeout_ms. Errors: kInvalidArgument, kTimeout with the missing ranks,
  // kMismatch of settings, kAuth, kUnsupported, kSystem; the status that give_up returned.
  static Status Establish(const Options& options, const Membership& membership, const Resources& resources,
                          const Patience& patience, std::unique_ptr<Setup>* setup);

  ~Setup();

  const Options& options() const { return options_; }
  const Resources& resources() const { return resources_; }
  int rank() const { return static_cast<int>(options_.rank); }
  int nranks() const { return membership_.nranks(); }
  const Membership& membership() const { return membership_; }
  const Topology& topology() const { return membership_.topology(); }
  int local_rank() const { return local_.rank; }
  int local_size() const { return local_.size; }
  const MachineUse& machine() const { return machine_; }
  // The communicator's random number, the same on all ranks; 0 when there is one rank only.
  uint64_t job() const { return job_; }
  const PlanSettings& plan() const { return plan_; }
  const WaitPolicy& wait_policy() const { return wait_policy_; }

  Monitor* monitor() { return telemetry_.monitor(); }
  // Null when there is no trace.
  TraceFile* trace_file() { return telemetry_.trace_file(); }
  Reactor* reactor() { return &reactor_; }
  Links& links() { return *links_; }
  // Why a link to that peer is not made by the transport that was chosen for it; "" when all are.
  std::string Refusal(int peer) const;
  // Null when there is one rank only.
  Control* control() { return control_.get(); }

  // Has `call` called when there is a verdict, by any thread, perhaps twice. It must not block. The verdict is not told
  // any more once Close has returned.
  void CallOnVerdict(std::function<void()> call);

  // Tells annulus-run, if it started this process, which rank the verdict names: this process may exit next.
  void TellLauncher(const Verdict& verdict) const;

  // Closes all links, so that threads waiting at their other ends fail too. Called by the thread that drives them,
  // which must not use them any more. Does not wait for a rank that the verdict says is lost. Idempotent and bounded in
  // time.
  void CloseLinks(const Verdict& verdict) { links_->Abandon(verdict.code == Code::kPeerLost ? verdict.rank : -1); }

  // Says goodbye and closes all links, once what was sent has arrived. Idempotent and bounded in time. No thread may be
  // driving the links.
  void Close();

 private:
  Setup(const Options& options, const Membership& membership, const Resources& resources);

  // Asks for what is to be recorded. A trace that cannot be written is logged, and fails nothing.
  void OpenTelemetry();
  // Which GPU is this rank's: the one that the settings name, or else the one that this thread uses.
  void FindGpu();
  void TellMachine() const;
  Status Meet(const Patience& patience, Deadline deadline);
  TransportConfig MakeTransportConfig();
  Status StartControl(ControlConnections connections);
  // Takes over what the meeting has brought, and connects the links.
  Status Link(const Meeting& meeting, const GiveUp& give_up, Deadline deadline);
  // The links that this rank needs, by transport.
  Status ChooseLinks(std::vector<std::vector<LinkRequest>>* wanted) const;
  const char* NameOf(size_t transport) const { return resources_.transports[transport]->name; }
  // As SelectTransport, between this rank and `peer`.
  Status Select(int peer, int* index, std::string* passed_over, size_t first = 0) const;
  // The link to `peer` as the transport of that index has to make it.
  LinkRequest RequestOf(int transport, int peer, int channel) const;
  void OnLink(size_t transport, const LinkRequest& link, std::unique_ptr<Endpoint> endpoint) override;
  Status Replace(size_t* transport, LinkRequest* link, const std::string& why) override;
  // Warns once of each reason for which links were replaced.
  void TellRefusals() const;
  void Notice();
  // The verdict as a status, OK while there is none.
  Status Verdicted() const;

  const Options options_;
  const Resources resources_;
  Membership membership_;  // Does not change once the ranks have met.
  PlanSettings plan_;
  WaitPolicy wait_policy_;
  MachineUse machine_;
  uint64_t job_ = 0;
  LocalPlace local_;
  Telemetry telemetry_;
  Reactor reactor_;  // Outlives what is registered with it.
  TransportSet transports_;
  std::unique_ptr<Links> links_;
  // A link that another transport makes than the one that was chosen.
  struct Refused {
    int peer = 0;
    size_t chosen = 0;
    size_t other = 0;
    std::string why;
  };
  std::vector<Refused> refused_;
  struct Bell {
    std::mutex mu;
    std::function<void()> call;  // Null: nobody has asked yet.
  };
  Bell bell_;
  std::unique_ptr<Control> control_;
};

}  // namespace annulus
