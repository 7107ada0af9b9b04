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
#include "collectives/control/redial.h"

namespace annulus {

class ControlMember : public ControlRole {
 public:
  // Time that a rank tries to connect to rank 0 again: after a reset, and after silence.
  static constexpr Nanoseconds kRedialTime = 3 * kSecond;
  static constexpr Nanoseconds kSilenceRedialTime = 8 * kSecond;
  // Time after which what must reach rank 0 is sent over another connection; and time without a word of rank 0, which
  // is due. A rank 0 that is stopped lets nobody in, though its kernel accepts connections, so dialling tells the two
  // apart.
  static constexpr Nanoseconds kUndelivered = 600 * kMillisecond;
  static constexpr Nanoseconds kNoWord = 750 * kMillisecond;
  // Rank 0 gives up no path sooner than this after its last word: its kernel needs two seconds at least.
  static constexpr Nanoseconds kLeastPatience = 2 * kSecond + kPathGrace;

  explicit ControlMember(const ControlRoleConfig& config);

  Status Open(ControlConnections connections) override;
  void Report(const Status& failure, const Call& call) override;
  void Doubt() override;
  void Settle(const Verdict& verdict) override;
  void Depart(std::function<void()> on_gone) override;
  bool AwaitsReturn() const override {
    // A dial beside a connection over which everything has arrived asks only whether rank 0 is silent.
    const bool may_arrive = session_.open() ? !session_.delivered() : redial_.active();
    return may_arrive && config_.net->Now() < path_until_;
  }

 private:
  void OnMessage(MessageType type, std::span<const std::byte> body);
  void OnVerdict(std::span<const std::byte> body);
  void OnGoodbye();
  void OnClosed(ControlEnd end, const Status& cause);
  // While the report or the goodbye has not reached rank 0's host, this rank waits longer, and dials again.
  void BeginWatch();
  void WatchPath();
  bool Connected(SealedFd connection);
  // Nobody listens at rank 0's door, or it expects this rank no more.
  void OnRefused();
  // Says whether rank 0, or the path to it, is silent.
  void NotePath(bool is_silent) const;
  // `last`: why the last attempt failed. A rank 0 that is only slow is dialled again; a call's deadline is the limit.
  void OnRedialledInVain(const Status& last);
  // There will be no connection to the judge any more, for the reason in `verdict`.
  void End(const Verdict& verdict);
  void Close();
  void Broken(const std::string& what);

  const ControlRoleConfig config_;
  ControlSession session_;
  Redial redial_;
  std::optional<Call> reported_;  // The call whose verdict is due.
  const std::unique_ptr<ControlTimer> path_check_;
  Deadline path_until_ = kNoDeadline;  // End of kPathGrace; set by the report and when this rank leaves.
  Nanoseconds undelivered_since_ = 0;  // When the path was last known to carry.
  Nanoseconds last_word_ = 0;          // Time of rank 0's last word, or when this rank began to wait for one.
  // When rank 0 may have given up the silent connection that is to be made again; kNoDeadline: it is none.
  Deadline given_up_from_ = kNoDeadline;
  bool judge_left_ = false;
  bool departing_ = false;
  std::function<void()> on_gone_;
};

}  // namespace annulus
