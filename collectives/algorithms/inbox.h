// Inbox: the message that an exchange awaits, one at a time.
//
// Threads: one at a time. Nothing allocates.
#pragma once

#include <cstddef>

#include "collectives/core/links.h"
#include "collectives/observe/monitor.h"

namespace annulus {

class Inbox {
 public:
  // `links` outlives it.
  explicit Inbox(const Links* links) : links_(links) {}

  // Begins anew, with nothing posted.
  void Reset();

  // Receives the message of `bytes` bytes and this tag from `from`. Sets *moved when something changed, and *complete
  // once all of it has arrived: received().data then holds it until Finish. Errors: the link's, CheckSlice's.
  Status Receive(int from, const Tag& tag, size_t bytes, bool* moved, bool* complete);
  const Recv& received() const { return recv_; }
  // Counts the message, and gives its slot back.
  void Finish(Monitor* monitor);

  // Rank whose message is awaited; -1: none.
  int awaited() const { return awaited_; }
  // Whether a receive is posted that is not complete.
  bool waits() const { return posted_ && recv_.code != Code::kOk; }

 private:
  const Links* const links_;
  int awaited_ = -1;
  bool posted_ = false;
  bool verified_ = false;  // The tag and size of what arrives are right.
  Recv recv_;
};

}  // namespace annulus
