#include "tests/cuda/cuda_test_device.h"

#include <array>
#include <cstdio>

#include "base/check.h"

namespace annulus {
namespace {

// The stand-in takes any image.
constexpr std::array<std::byte, 1> kImage{};

}  // namespace

CudaTestDevice::CudaTestDevice(const cuda::FakeOptions& options)
    : fake_(cuda::ResetFakeCuda(options)), domain_(std::make_unique<CudaDomain>(cuda::OpenFakeCuda(), kImage)) {}

CudaTestDevice::~CudaTestDevice() {
  domain_.reset();
  if (allows_mistakes_) return;
  for (const std::string& violation : fake_->Violations()) std::fprintf(stderr, "stand-in: %s\n", violation.c_str());
  ANNULUS_CHECK(fake_->Violations().empty());
  const cuda::FakeCounts counts = fake_->Counts();
  ANNULUS_CHECK(counts.contexts == 0 && counts.streams == 0 && counts.libraries == 0);
  ANNULUS_CHECK(counts.pinned_ranges == 0 && counts.allocations == 0 && counts.lazy_loads == 0);
}

}  // namespace annulus
