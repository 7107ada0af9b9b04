// Communicator: one of MPI, over one of Annulus, or one that failed to form and says so at each use.
//
// Threads: any. A communicator of Annulus is destroyed when no call uses it any more.
#pragma once

#include <annulus.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace annulus_mpi {

class Communicator {
 public:
  // A communicator whose rank r is process members[r] of the job. Owns `comm`.
  Communicator(annulus_comm_t* comm, int rank, std::vector<int> members);
  // One that is of no use, and why: XLA does not look at the outcome of what made it, but at that of the next call.
  explicit Communicator(std::string failure);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // While it lives, so does the communicator of Annulus. Throws when there is none.
  class Use {
   public:
    explicit Use(const Communicator& communicator);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    annulus_comm_t* get() const { return communicator_.comm_; }

   private:
    const Communicator& communicator_;
  };

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }
  // Throws Error with the reason when it is of no use.
  void RequireUsable() const { const Use use(*this); }

  // Throws Error with what this thread's latest call of Annulus says, unless the status is ANNULUS_OK.
  void Check(annulus_status_t status) const;

  // Forms new ones out of the ranks of this one, as MPI_Comm_split; null for a negative colour. The keys of each must
  // be 0 to n - 1; all ranks of one that is refused throw.
  std::shared_ptr<Communicator> Split(int colour, int key) const;

  // How long calls under way may go on, and why those that do are aborted then. Without a time, all that the
  // communicator's ranks have to do with each other ends at once, also what they have not begun yet.
  struct Patience {
    std::optional<std::chrono::steady_clock::time_point> until;
    std::string why;
  };
  static Patience OfOneMinute();

  // Refuses further calls, waits for those under way, and leaves. Whoever comes second does nothing.
  void Leave(const Patience& patience);

 private:
  mutable std::mutex splits_;  // Held while one forms, which takes several calls of Annulus.
  mutable std::mutex mutex_;
  mutable std::condition_variable unused_;
  mutable int uses_ = 0;
  annulus_comm_t* comm_ = nullptr;
  bool leaving_ = false;
  const int rank_ = 0;
  const std::vector<int> members_;
  std::string failure_;
};

}  // namespace annulus_mpi
