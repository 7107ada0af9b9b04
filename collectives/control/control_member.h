// ControlMember: the control thread of every rank except 0. It has one connection, to the judge, and accepts its
// verdict.
//
// Threads: the control thread only.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "collectives/control/control_channel.h"
#include "collectives/control/control_role.h"

namespace annulus {

class ControlMember : public ControlRole {
 public:
  explicit ControlMember(const ControlRoleConfig& config) : config_(config) {}
  ~ControlMember() override;

  Status Open(ControlConnections connections) override;
  void Report(const Status& failure, const Call& call) override;
  void Doubt() override;
  void Settle(const Verdict& verdict) override;
  void Depart(std::function<void()> on_gone) override;

 private:
  void Take(MessageType type, std::span<const std::byte> body);
  void TakeVerdict(std::span<const std::byte> body);
  void Closed(const Status& cause);
  void Broken(const std::string& what);

  const ControlRoleConfig config_;
  std::shared_ptr<ControlChannel> channel_;
  std::optional<Call> reported_;  // The call whose verdict is due.
  bool judge_left_ = false;
  bool departing_ = false;
  std::function<void()> on_gone_;
};

}  // namespace annulus
