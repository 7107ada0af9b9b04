// Calls that set something up, of each thread, and which of them the device refuses. Ranks that are threads of one
// process have a device each in this respect.
//
// Threads: each has its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus {

enum class SimulatedCall : uint8_t {
  kOpenDevice,
  kQueryDevice,
  kQueryPort,
  kQueryGids,
  kQueryPkey,
  kDomain,
  kRegister,
  kChannel,
  kQueue,
  kPair,
  kInitialize,
  kPostReceive,  // Until the pair is connected.
  kConnectToReceive,
  kConnectToSend,
};

class SimulatedRefusals {
 public:
  // From now on this thread's calls from number `first` on, counted from 0, fail with `error`: so many of them.
  static void Set(size_t first, size_t count, int error);
  // The same for all calls of one kind.
  static void Refuse(SimulatedCall call, int error);
  static void Clear() { Set(SIZE_MAX, 0, 0); }
  // This thread's calls since any of these, refused or not.
  static const std::vector<SimulatedCall>& Calls();

  // For the provider: notes the call. Returns the error with which it fails; 0: it does not.
  static int Note(SimulatedCall call);
  // The same, as whether it fails, with errno.
  static bool Refuses(SimulatedCall call);
};

}  // namespace annulus
