// VerbsHub: what the links of one communicator share: the device, a protection domain, one completion queue with the
// descriptor in which its owner sleeps, and the device's events.
//
// A poll takes the completions of all links and passes each one to its link, which only records it. So it does not
// matter which link polls.
//
// Threads: the one that drives the communicator.
#pragma once

#include <asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/handler_memory.h"
#include "transport/reactor.h"
#include "transport/verbs/device/verbs_advice.h"
#include "transport/verbs/device/verbs_device.h"

namespace annulus {

// What a request is; with its value it makes the low half of its id.
enum class VerbsRequest : uint8_t { kMessage, kRead, kReceive, kKeepalive };

// One link's part in the completions. Low 30 bits of a request's id: `value`.
class VerbsLink {
 public:
  virtual void OnCompletion(const ibv_wc& completion, VerbsRequest request, uint32_t value) = 0;

 protected:
  ~VerbsLink() = default;
};

class VerbsHub {
 public:
  static constexpr uint32_t kMostValue = (1U << 30) - 1;

  VerbsHub(std::unique_ptr<VerbsDevice> device, Reactor* reactor);
  ~VerbsHub();
  VerbsHub(const VerbsHub&) = delete;
  VerbsHub& operator=(const VerbsHub&) = delete;

  // Makes a completion queue for `completions` at once. `locked_bytes`: memory that the links will register, for
  // errors. Errors: kUnsupported, kSystem.
  Status Open(uint64_t completions, uint64_t locked_bytes = 0);
  // What to do about an errno of the device; "" when there is nothing to say.
  std::string AdviceOn(int os_errno) const { return VerbsAdvice(os_errno, locked_bytes_); }

  const VerbsDevice& device() const { return *device_; }
  const VerbsApi& api() const { return *device_->api(); }
  ibv_pd* domain() const { return domain_; }
  ibv_cq* queue() const { return queue_; }

  // That of its owner's reactor.
  auto executor() { return completions_.get_executor(); }

  // Adds a link; it must be removed before it ends. Returns its number.
  uint32_t Add(VerbsLink* link);
  // Completions of that link that are still to come are dropped.
  void Remove(uint32_t number) { links_[number] = nullptr; }

  static uint64_t IdOf(uint32_t number, VerbsRequest request, uint32_t value) {
    return uint64_t{number} << 32 | static_cast<uint32_t>(request) << 30 | (value & kMostValue);
  }

  // Passes on what has completed, up to a bound. Returns how many requests that were.
  int Poll();

  // Makes the reactor return once something completes. Returns false when something has completed meanwhile.
  bool Arm();

  // Whether the device or its queue has failed, so that nothing will complete any more.
  bool failed() const { return failed_; }
  // What the device has reported that explains a failure, such as "; port 1 went down"; "" when nothing.
  const std::string& trouble() const { return state_->trouble; }

 private:
  // Handlers that are still queued keep it alive after the hub is gone.
  struct State {
    bool waiting = false;
    bool rung = false;
    HandlerMemory handler;
    bool watching = false;
    bool told = false;  // The device has an event.
    std::string trouble;
  };

  // The status of a call that has just failed.
  Status Refused(const char* what) const;
  void ReadEvents();
  void ReadNews();
  void WatchNews();

  const std::unique_ptr<VerbsDevice> device_;
  uint64_t locked_bytes_ = 0;  // As in Open.
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  asio::posix::stream_descriptor completions_;
  asio::posix::stream_descriptor news_;
  std::vector<VerbsLink*> links_;  // By number; null: removed.
  bool failed_ = false;
  bool armed_ = false;  // The next completion raises an event.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace annulus
