#include "transport/shm/shm_peer_memory.h"

#include <sys/uio.h>

namespace annulus {
namespace {

void* PointerOf(uint64_t address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

}  // namespace

ShmPeerMemory::ShmPeerMemory(pid_t process, uint64_t nonce_address, const ShmNonce& nonce)
    : process_(process), nonce_address_(nonce_address), nonce_(nonce), works_(process > 0) {
  if (works_) Read(nullptr, 0, 0);
}

bool ShmPeerMemory::Read(std::byte* to, uint64_t address, size_t bytes) {
  if (!works_) return false;
  // The nonce comes last: what has gone wrong before leaves it out.
  ShmNonce nonce{};
  const iovec local[] = {{to, bytes}, {&nonce, sizeof(nonce)}};
  const iovec remote[] = {{PointerOf(address), bytes}, {PointerOf(nonce_address_), sizeof(nonce)}};
  const ssize_t copied = process_vm_readv(process_, local, 2, remote, 2, 0);
  works_ = copied == static_cast<ssize_t>(bytes + sizeof(nonce)) && nonce == nonce_;
  return works_;
}

}  // namespace annulus
