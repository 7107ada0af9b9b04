// FakePeers: which devices of the stand-in reach each other's memory, and which have been let in.
//
// Threads: one at a time.
#pragma once

#include <set>
#include <utility>

#include "cuda_kernels/driver/driver_types.h"
#include "tests/cuda/fake_driver/fake_control.h"

namespace annulus::cuda {

class FakePeers {
 public:
  explicit FakePeers(const FakeOptions& options)
      : devices_(options.devices), first_(options.first_device), link_(options.link) {}

  // The number that a device of this process has on the machine, and back; -1: this process does not see it.
  int OnMachine(int device) const { return first_ + device; }
  int InProcess(int on_machine) const {
    const int device = on_machine - first_;
    return device >= 0 && device < devices_ ? device : -1;
  }
  // What joins a device of this process with one of the machine.
  FakeLink LinkTo(int device, int on_machine) const {
    return link_ != nullptr ? link_(OnMachine(device), on_machine) : FakeLink::kNvlink;
  }
  bool CanAccess(int device, int on_machine) const {
    return OnMachine(device) == on_machine || LinkTo(device, on_machine) != FakeLink::kNone;
  }

  // As the driver: `device` is let into the memory of `peer`, both of this process.
  Result Enable(int device, int peer) {
    if (device == peer) return Result::kInvalidDevice;
    if (!CanAccess(device, OnMachine(peer))) return Result::kPeerAccessUnsupported;
    return enabled_.emplace(device, peer).second ? Result::kSuccess : Result::kPeerAccessAlreadyEnabled;
  }
  // Its context is gone.
  void Forget(int device) {
    std::erase_if(enabled_, [=](const auto& pair) { return pair.first == device || pair.second == device; });
  }
  bool IsEnabled(int device, int peer) const { return device == peer || enabled_.contains({device, peer}); }

 private:
  const int devices_;
  const int first_;
  FakeLink (*const link_)(int, int);
  std::set<std::pair<int, int>> enabled_;
};

}  // namespace annulus::cuda
