// SealedFd: a sealed socket (transport/security/sealed_socket.h) on its way to another thread.
//
// Threads: a value; one at a time.
#pragma once

#include <memory>
#include <utility>

#include "transport/security/seal.h"

namespace annulus {

// Who has it closes the descriptor.
struct SealedFd {
  SealedFd(int plain = -1) : fd(plain) {}  // NOLINT: a descriptor without a seal.
  SealedFd(int taken, std::unique_ptr<Seal> its_seal) : fd(taken), seal(std::move(its_seal)) {}
  int fd;
  std::unique_ptr<Seal> seal;
};

}  // namespace annulus
