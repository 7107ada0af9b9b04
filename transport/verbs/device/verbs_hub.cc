#include "transport/verbs/device/verbs_hub.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace annulus {
namespace {

// Completions of one poll. More stay for the next one, so that one call takes a bounded time.
constexpr int kMostPolled = 32;
// Events of the channel that are acknowledged at once; each arming causes at most one.
constexpr int kMostEvents = 16;

// Reading such a descriptor must not block, and programs that this process starts must not have it.
void Prepare(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
}

}  // namespace

VerbsHub::VerbsHub(std::unique_ptr<VerbsDevice> device, Reactor* reactor)
    : device_(std::move(device)), completions_(reactor->context()), news_(reactor->context()) {}

VerbsHub::~VerbsHub() {
  // The library closes the descriptors.
  if (completions_.is_open()) completions_.release();
  if (news_.is_open()) news_.release();
  if (queue_ != nullptr) {
    ReadEvents();
    api().destroy_cq(queue_);
  }
  if (channel_ != nullptr) api().destroy_comp_channel(channel_);
  if (domain_ != nullptr) api().dealloc_pd(domain_);
}

Status VerbsHub::Refused(const char* what) const {
  const int error = errno;
  const Status refused = Status::System(std::string("verbs: ") + what + " on " + device_->Describe(), error);
  return {refused.code(), refused.message() + AdviceOn(error), Status::kNoRank, error};
}

Status VerbsHub::Open(uint64_t completions, uint64_t locked_bytes) {
  locked_bytes_ = locked_bytes;
  if (completions > static_cast<uint64_t>(device_->max_cqe())) {
    return {Code::kUnsupported, "verbs: " + device_->Describe() + " has completion queues for at most " +
                                    std::to_string(device_->max_cqe()) + " requests, and the links of this rank need " +
                                    std::to_string(completions)};
  }
  domain_ = api().alloc_pd(device_->context());
  if (domain_ == nullptr) return Refused("a protection domain");
  channel_ = api().create_comp_channel(device_->context());
  if (channel_ == nullptr) return Refused("a completion channel");
  queue_ =
      api().create_cq(device_->context(), static_cast<int>(std::max<uint64_t>(completions, 1)), nullptr, channel_, 0);
  if (queue_ == nullptr) return Refused("a completion queue");
  Prepare(channel_->fd);
  Prepare(device_->context()->async_fd);
  fcntl(device_->context()->cmd_fd, F_SETFD, FD_CLOEXEC);
  asio::error_code error;
  completions_.assign(channel_->fd, error);
  if (!error) news_.assign(device_->context()->async_fd, error);
  if (error) return Status::System("verbs: waiting for " + device_->Describe(), error.value());
  WatchNews();
  return Status();
}

uint32_t VerbsHub::Add(VerbsLink* link) {
  links_.push_back(link);
  return static_cast<uint32_t>(links_.size() - 1);
}

int VerbsHub::Poll() {
  if (state_->told) ReadNews();
  std::array<ibv_wc, kMostPolled> done;
  const int count = ibv_poll_cq(queue_, kMostPolled, done.data());
  if (count < 0 && !failed_) {
    // Its cause may be there already, unread while nobody has slept.
    ReadNews();
    failed_ = true;
  }
  for (int i = 0; i < count; ++i) {
    const ibv_wc& completion = done[static_cast<size_t>(i)];
    const uint64_t number = completion.wr_id >> 32;
    if (number >= links_.size() || links_[number] == nullptr) continue;
    const uint32_t low = static_cast<uint32_t>(completion.wr_id);
    links_[number]->OnCompletion(completion, static_cast<VerbsRequest>(low >> 30), low & kMostValue);
  }
  return std::max(count, 0);
}

bool VerbsHub::Arm() {
  if (state_->rung) ReadEvents();
  if (!armed_) {
    // What completes from here on raises an event; what had completed before is found by the poll.
    if (ibv_req_notify_cq(queue_, 0) != 0) return false;
    armed_ = true;
  }
  // Each time: a poll takes a bounded number, so more than it took may have been there before the arming.
  if (Poll() > 0) return false;
  if (!state_->waiting) {
    state_->waiting = true;
    const auto handler = [state = state_](const asio::error_code&) {
      state->waiting = false;
      state->rung = true;
    };
    completions_.async_wait(asio::posix::stream_descriptor::wait_read, state_->handler.Keep(handler));
  }
  return true;
}

void VerbsHub::ReadEvents() {
  state_->rung = false;
  unsigned events = 0;
  for (int i = 0; i < kMostEvents; ++i) {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    if (api().get_cq_event(channel_, &queue, &context) != 0) break;
    ++events;
  }
  if (events == 0) return;
  armed_ = false;
  api().ack_cq_events(queue_, events);
}

void VerbsHub::WatchNews() {
  if (std::exchange(state_->watching, true)) return;
  news_.async_wait(asio::posix::stream_descriptor::wait_read, [state = state_](const asio::error_code& error) {
    state->watching = false;
    state->told = !error;
  });
}

// An event is no failure by itself: a port that comes back soon enough costs nothing but time, and what does not
// recover fails the requests. But it explains the failure.
void VerbsHub::ReadNews() {
  state_->told = false;
  for (int i = 0; i < kMostEvents; ++i) {
    ibv_async_event event{};
    if (api().get_async_event(device_->context(), &event) != 0) break;
    switch (event.event_type) {
      case IBV_EVENT_PORT_ERR:
        if (!failed_ && event.element.port_num == device_->port()) {
          state_->trouble = "; port " + std::to_string(event.element.port_num) + " went down";
        }
        break;
      case IBV_EVENT_PORT_ACTIVE:
        if (!failed_ && event.element.port_num == device_->port()) state_->trouble = "";
        break;
      case IBV_EVENT_DEVICE_FATAL:
        state_->trouble = "; the device failed";
        failed_ = true;
        break;
      case IBV_EVENT_CQ_ERR:
        state_->trouble = "; its completion queue overflowed";
        failed_ = true;
        break;
      default:
        break;
    }
    api().ack_async_event(&event);
  }
  WatchNews();
}

}  // namespace annulus
