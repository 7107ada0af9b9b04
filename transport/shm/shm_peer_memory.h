// ShmPeerMemory: copies from the memory of the peer's process by a system call (process_vm_readv), where the kernel
// permits that. Processes of one user may usually read each other; Yama, seccomp filters, user namespaces and
// prctl(PR_SET_DUMPABLE) can forbid it.
//
// The number of a process says little: it comes from the link's socket, but another process may have it once the peer
// is gone, and it means something else in another namespace. So each call also reads the link's nonce, at the address
// at which the peer says that it has mapped the link's file. The kernel looks the process up once for both.
//
// The peer's memory stays as trusted as what the peer sends: the caller checks the length, and what the address is
// matters to the peer alone.
//
// Threads: as the endpoint.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/shm/shm_format.h"

namespace annulus {

class ShmPeerMemory {
 public:
  // `process`: the peer, or 0 if it is not known, or not to be read. `nonce_address`: where it has the nonce. Tries to
  // read that.
  ShmPeerMemory(pid_t process, uint64_t nonce_address, const ShmNonce& nonce);

  // Whether Read has succeeded so far.
  bool works() const { return works_; }
  struct Part {
    std::byte* to = nullptr;
    uint64_t address = 0;
    size_t bytes = 0;
  };
  static constexpr size_t kMostParts = 16;
  // Copies from the peer's memory, up to kMostParts in one call. Returns false if not all of it could be copied, or not
  // from the peer; it is not tried again then.
  bool Read(std::span<const Part> parts);

 private:
  const pid_t process_;
  const uint64_t nonce_address_;
  const ShmNonce nonce_;
  bool works_;
};

}  // namespace annulus
