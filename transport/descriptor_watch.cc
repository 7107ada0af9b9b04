#include "transport/descriptor_watch.h"

#include <sys/eventfd.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "transport/handler_memory.h"

namespace annulus {

struct DescriptorWatch::Descriptor {
  // A handler may run after the watch has ended.
  struct State {
    bool is_armed = false;
    HandlerMemory handler;
  };

  asio::posix::stream_descriptor stream;
  const std::shared_ptr<State> state = std::make_shared<State>();
};

DescriptorWatch::DescriptorWatch(Reactor* reactor, int fd)
    : descriptor_(new Descriptor{asio::posix::stream_descriptor(reactor->context(), fd)}) {}

DescriptorWatch::~DescriptorWatch() { descriptor_->stream.release(); }

void DescriptorWatch::Arm() {
  if (descriptor_->state->is_armed) return;
  descriptor_->state->is_armed = true;
  const auto handler = [state = descriptor_->state,
                        fd = descriptor_->stream.native_handle()](const asio::error_code& error) {
    state->is_armed = false;
    if (error) return;  // The watch has ended, and the descriptor may have.
    eventfd_t finished = 0;
    (void)eventfd_read(fd, &finished);
  };
  descriptor_->stream.async_wait(asio::posix::stream_descriptor::wait_read, descriptor_->state->handler.Keep(handler));
}

}  // namespace annulus
