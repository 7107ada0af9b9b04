// ControlMember: the control thread of every rank except 0. It has one connection, to the judge, and accepts its
// verdict. When the connection breaks, it dials the judge's door.
//
// Threads: the control thread only.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "collectives/control/control_net.h"
#include "collectives/control/control_role.h"
#include "collectives/control/control_session.h"

namespace annulus {

class ControlMember : public ControlRole {
 public:
  // Time that a rank tries to connect to rank 0 again.
  static constexpr Nanoseconds kRedialTime = 3 * kSecond;

  explicit ControlMember(const ControlRoleConfig& config);
  ~ControlMember() override;

  Status Open(ControlConnections connections) override;
  void Report(const Status& failure, const Call& call) override;
  void Doubt() override;
  void Settle(const Verdict& verdict) override;
  void Depart(std::function<void()> on_gone) override;
  bool AwaitsReturn() const override { return redial_until_ != kNoDeadline && config_.net->Now() < redial_until_; }

 private:
  void Take(MessageType type, std::span<const std::byte> body);
  void TakeVerdict(std::span<const std::byte> body);
  void TakeDoor(std::span<const std::byte> body);
  void TakeGoodbye();
  void Closed(ControlEnd end, const Status& cause);
  // Lets this rank wait longer for the verdict while its report has not reached rank 0's host.
  void WatchPath();
  void Dial();
  void Dialled(const Status& status, int fd);
  // There will be no connection to the judge any more, for the reason in `verdict`.
  void End(const Verdict& verdict);
  void Broken(const std::string& what);

  const ControlRoleConfig config_;
  ControlSession session_;
  std::string judge_host_;
  StreamEndpoint door_;  // No address until the judge has said it.
  const std::unique_ptr<ControlTimer> retry_;
  Deadline redial_until_ = kNoDeadline;  // Set while there is no connection.
  int lost_errno_ = 0;                   // Cause of the broken connection; 0: a reset.
  std::optional<Call> reported_;         // The call whose verdict is due.
  const std::unique_ptr<ControlTimer> path_check_;
  Deadline path_until_ = kNoDeadline;  // End of kPathGrace; set by the report.
  bool judge_left_ = false;
  bool departing_ = false;
  std::function<void()> on_gone_;
};

}  // namespace annulus
