// How the stand-in's functions begin: with its lock, with the failure that was asked for, and with a context or not.
//
// Threads: any.
#pragma once

#include <memory>

#include "tests/cuda/fake_driver/fake_driver.h"

namespace annulus::cuda {

inline FakeDriver& Fake() {
  static FakeDriver& fake = *std::make_unique<FakeDriver>().release();
  return fake;
}

// Calls body() as the driver's function `name`, with a context or not.
template <class Body>
Result WithContext(const char* name, Body body) {
  return Fake().Call(name, true, body);
}
template <class Body>
Result Without(const char* name, Body body) {
  return Fake().Call(name, false, body);
}

// The same as a call that ends the graph that a thread captures, unless the caller said that it is none of it.
template <class Body>
Result OutsideGraphs(const char* name, Body body) {
  return WithContext(name, [&] {
    const CaptureMode mode = CaptureModeOfThread();
    const bool disturbs =
        Fake().gpu().WithGraphs([=](FakeGraphs* graphs, FakeStreams*) { return graphs->Disturb(mode); });
    const bool is_refused = disturbs || (Fake().options().captures_graph && mode != CaptureMode::kRelaxed);
    return is_refused ? Result::kStreamCaptureUnsupported : body();
  });
}

}  // namespace annulus::cuda
