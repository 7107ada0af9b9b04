// ControlJudge: the control thread of rank 0. It passes messages from every rank, including itself, to the arbiter, and
// sends out the arbiter's queries and its verdict. A rank whose connection broke may come back through the door.
//
// Threads: the control thread only.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "collectives/control/absences.h"
#include "collectives/control/arbiter.h"
#include "collectives/control/control_role.h"
#include "collectives/control/control_session.h"

namespace annulus {

class ControlJudge : public ControlRole {
 public:
  // Time in which a rank may come back: after a reset, which it notices at once or, if only this side was reset, by its
  // next keepalive a second later; and after silence, which it notices a second before or after this side. The latter
  // is at most kPathGrace while a failure is investigated.
  static constexpr Nanoseconds kResetGrace = 1500 * kMillisecond;
  static constexpr Nanoseconds kSilenceGrace = 9 * kSecond;
  // Time in which rank 0, having found a death, reads what else has arrived. Where its process was stopped, the others
  // may have a verdict already.
  static constexpr Nanoseconds kReadGrace = 2 * kMillisecond;
  // Time in which what a rank has missed reaches it after its return.
  static constexpr Nanoseconds kReplayGrace = 200 * kMillisecond;
  // Most time that rank 0 waits, when it leaves, for ranks that are away or come and go.
  static constexpr Nanoseconds kLongestLeave = kSilenceGrace + 2 * kPathGrace;

  explicit ControlJudge(const ControlRoleConfig& config);

  Status Open(ControlConnections connections) override;
  void Report(const Status& failure, const Call& call) override;
  void Doubt() override;
  void Settle(const Verdict& verdict) override;
  void Depart(std::function<void()> on_gone) override;
  bool AwaitsReturn() const override;

 private:
  void OnMessage(int rank, MessageType type, std::span<const std::byte> body);
  // Returns false when the body cannot be read.
  bool OnBody(int rank, MessageType type, ByteReader* in);
  void OnClosed(int rank, ControlEnd end, const Status& cause);
  void OnReturned(int rank, SealedFd connection);
  // `rank` is not coming back.
  void Gone(int rank, int os_errno);
  // Tells all ranks about a loss after the verdict: new communicators that they are making may need that rank.
  void TellLoss(int rank, int os_errno);
  // Carries out what the arbiter wants after an event.
  void Act();
  void Announce();
  void TimeIsUp();
  // After a pause of this process nobody has been away for too long: who has come back may be unread.
  void NotePause(Nanoseconds now);
  void EndAbsences(Nanoseconds now);
  // Takes the ranks that no question has reached for lost, rather than for silent.
  void FindUnheard(Nanoseconds now);
  // `rank` may come back, within `grace`; or it is back.
  void Await(int rank, int os_errno, Nanoseconds grace);
  void Back(int rank);
  void SendAll(MessageType type, const std::string& body);
  void SetTimer();
  void Leave(std::function<void()> on_gone);
  bool AllDelivered() const;
  void CheckGone();

  const ControlRoleConfig config_;
  Arbiter arbiter_;
  std::vector<std::unique_ptr<ControlSession>> sessions_;  // By rank; null for rank 0.
  bool has_door_ = false;                                  // Otherwise nobody can come back.
  Absences absences_;
  std::set<int> given_up_;  // Ranks that were away for too long, since they were last heard.
  const std::unique_ptr<ControlTimer> timer_;
  Deadline due_ = kNoDeadline;   // What the timer is set for.
  Nanoseconds returned_at_ = 0;  // When a rank last came back.
  bool announced_ = false;
  std::function<void()> departure_;  // What Depart was given, while it waits for ranks that are away.
  std::function<void()> on_gone_;    // Set while departing.
  Deadline path_until_ = 0;          // End of kPathGrace, while departing.
  Deadline leave_by_ = kNoDeadline;  // End of kLongestLeave, while departing.
};

}  // namespace annulus
