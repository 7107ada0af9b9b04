#include "tests/gpu/copy_loop.h"

#include "base/check.h"
#include "base/clock.h"

namespace annulus {
namespace {

// So many that the time between two batches is small beside their own, a millisecond or so.
constexpr int kBatch = 16;

bool Succeeds(cuda::Result result) { return result == cuda::Result::kSuccess; }

}  // namespace

CopyLoop::CopyLoop(RealDevice* device, size_t bytes)
    : device_(device), bytes_(bytes), from_(device->Allocate(bytes)), to_(device->Allocate(bytes)) {
  const cuda::ScopedContext scope(device_->driver(), device_->context());
  ANNULUS_CHECK(Succeeds(device_->driver()->StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0)));
  ANNULUS_CHECK(Succeeds(device_->driver()->MemsetD8Async(cuda::ToDevice(from_), 1, bytes_, stream_)));
  ANNULUS_CHECK(Succeeds(device_->driver()->StreamSynchronize(stream_)));
}

CopyLoop::~CopyLoop() {
  {
    const cuda::ScopedContext scope(device_->driver(), device_->context());
    device_->driver()->StreamDestroy(stream_);
  }
  device_->Free(from_);
  device_->Free(to_);
}

double CopyLoop::Run(int milliseconds) {
  const cuda::Driver& driver = device_->driver();
  const cuda::ScopedContext scope(driver, device_->context());
  const Nanoseconds begin = Now();
  const Nanoseconds end = begin + milliseconds * kMillisecond;
  double copied = 0;
  Nanoseconds now = begin;
  for (; now < end; now = Now()) {
    for (int i = 0; i < kBatch; ++i) {
      ANNULUS_CHECK(Succeeds(driver->MemcpyAsync(cuda::ToDevice(to_), cuda::ToDevice(from_), bytes_, stream_)));
    }
    ANNULUS_CHECK(Succeeds(driver->StreamSynchronize(stream_)));
    copied += static_cast<double>(kBatch) * static_cast<double>(bytes_);
  }
  return copied / (static_cast<double>(now - begin) / 1e9);
}

}  // namespace annulus
