#include "transport/descriptor_watch.h"

#include <sys/eventfd.h>

namespace annulus {

DescriptorWatch::DescriptorWatch(Reactor* reactor, int fd) : descriptor_(reactor->context(), fd) {}

DescriptorWatch::~DescriptorWatch() { descriptor_.release(); }

void DescriptorWatch::Arm() {
  if (state_->is_armed) return;
  state_->is_armed = true;
  const auto handler = [state = state_, fd = descriptor_.native_handle()](const asio::error_code& error) {
    state->is_armed = false;
    if (error) return;  // The watch has ended, and the descriptor may have.
    eventfd_t finished = 0;
    (void)eventfd_read(fd, &finished);
  };
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_read, state_->handler.Keep(handler));
}

}  // namespace annulus
