// ControlJudge: the control thread of rank 0. It passes messages from every rank, including itself, to the arbiter, and
// sends out the arbiter's queries and its verdict.
//
// Threads: the control thread only.
#pragma once

#include <asio/steady_timer.hpp>
#include <memory>
#include <vector>

#include "collectives/control/arbiter.h"
#include "collectives/control/control_channel.h"
#include "collectives/control/control_role.h"

namespace annulus {

class ControlJudge : public ControlRole {
 public:
  explicit ControlJudge(const ControlRoleConfig& config);
  ~ControlJudge() override;

  Status Open(ControlConnections connections) override;
  void Report(const Status& failure, const Call& call) override;
  void Doubt() override;
  void Settle(const Verdict& verdict) override;
  void Depart(std::function<void()> on_gone) override;

 private:
  void Take(int rank, MessageType type, std::span<const std::byte> body);
  // Returns false when the body cannot be read.
  bool TakeBody(int rank, MessageType type, ByteReader* in);
  void Closed(int rank, const Status& cause);
  // Tells all ranks about a death after the verdict: new communicators that they are making may need that rank.
  void TellLoss(int rank, int os_errno);
  // Carries out what the arbiter wants after an event.
  void Act();
  void SendAll(const Frame& frame);
  void SetTimer();
  void CheckGone();

  const ControlRoleConfig config_;
  Arbiter arbiter_;
  std::vector<std::shared_ptr<ControlChannel>> channels_;  // By rank; null for rank 0.
  asio::steady_timer timer_;
  bool announced_ = false;
  std::function<void()> on_gone_;  // Set while departing.
};

}  // namespace annulus
