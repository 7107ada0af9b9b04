#include "collectives/algorithms/inbox.h"

#include <cstdint>

#include "collectives/algorithms/slice_tag.h"

namespace annulus {

void Inbox::Reset() {
  awaited_ = -1;
  posted_ = verified_ = false;
}

Status Inbox::Receive(int from, const Tag& tag, size_t bytes, bool* moved, bool* complete) {
  awaited_ = from;
  if (!posted_) {
    recv_ = Recv();
    recv_.capacity = static_cast<uint32_t>(bytes);
    Status posted = links_->At(from, 0)->PostRecv(&recv_);
    if (!posted.ok() && !posted.would_block()) return posted;
    posted_ = posted.ok();
    if (posted_) *moved = true;
  }
  if (posted_ && recv_.started && !verified_) {
    ANNULUS_RETURN_IF_ERROR(CheckSlice({tag, recv_.capacity}, {recv_.tag, recv_.bytes}, from));
    verified_ = true;
  }
  *complete = verified_ && recv_.code == Code::kOk;
  return Status();
}

void Inbox::Finish(Monitor* monitor) {
  monitor->Received(awaited_, recv_.bytes);
  links_->At(awaited_, 0)->Release(&recv_);
  Reset();
}

}  // namespace annulus
