// DescriptorWatch: wakes a reactor when work of a device has finished, by a descriptor that somebody else owns.
//
// Threads: one at a time, the one that drives the communicator.
#pragma once

#include <memory>

#include "transport/reactor.h"

namespace annulus {

class DescriptorWatch {
 public:
  // `fd` is an eventfd that does not block. It and the reactor outlive the watch.
  DescriptorWatch(Reactor* reactor, int fd);
  ~DescriptorWatch();
  DescriptorWatch(const DescriptorWatch&) = delete;
  DescriptorWatch& operator=(const DescriptorWatch&) = delete;

  // Asks the reactor to wake once the descriptor is readable, also when it already is. It is emptied then, so the owner
  // must look at all work after a wake-up and before the next sleep. Cheap when called again before a wake-up.
  void Arm();

 private:
  struct Descriptor;  // Asio's.
  const std::unique_ptr<Descriptor> descriptor_;
};

}  // namespace annulus
