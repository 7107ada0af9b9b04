#include "transport/descriptor_watch.h"

#include <sys/eventfd.h>

namespace annulus {

DescriptorWatch::DescriptorWatch(Reactor* reactor, int fd) : descriptor_(reactor->context(), fd) {}

DescriptorWatch::~DescriptorWatch() { descriptor_.release(); }

void DescriptorWatch::Arm() {
  if (*is_armed_) return;
  *is_armed_ = true;
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                         [is_armed = is_armed_, fd = descriptor_.native_handle()](const asio::error_code& error) {
                           *is_armed = false;
                           if (error) return;  // The watch has ended, and the descriptor may have.
                           eventfd_t finished = 0;
                           (void)eventfd_read(fd, &finished);
                         });
}

}  // namespace annulus
