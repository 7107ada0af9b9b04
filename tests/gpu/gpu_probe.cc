// gpu_probe: checks on a machine with a GPU what Annulus takes for granted about it, and measures what the kernels and
// copies reach. Runs on the stand-in for the driver too, where its times mean nothing.
//
//   gpu_probe [DRIVER [ROUNDS]]      DRIVER: libcuda.so.1 unless given
//
// One line for each check: "ok NAME", "FAILED NAME: why" or "not run NAME: why". Ends with status 0 when all are ok, 77
// without a GPU.
//
// Threads: one.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cuda_kernels/kernel_image.h"
#include "tests/cuda/random_operations.h"
#include "tests/gpu/probe/probe_alone.h"
#include "tests/gpu/probe/probe_checks.h"
#include "tests/gpu/probe/probe_graphs.h"
#include "tests/gpu/probe/probe_peers.h"
#include "tests/gpu/probe/probe_streams.h"
#include "tests/gpu/probe/probe_times.h"
#include "tests/gpu/probe/probe_virtual.h"

namespace annulus {
namespace {

constexpr int kNoGpu = 77;
constexpr int kRounds = 3000;

bool Report(const char* name, const std::string& wrong) {
  if (wrong.empty()) {
    std::printf("ok %s\n", name);
  } else {
    std::printf("FAILED %s: %s\n", name, wrong.c_str());
  }
  std::fflush(stdout);
  return wrong.empty();
}

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The median time of an operation, from Submit to the Poll that finds it done; 0 when it fails.
double TimeOf(DomainQueue* queue, const SliceOp& op, int repeats) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const double begin = Seconds();
    if (!RunToStatus(queue, op).ok()) return 0;
    times.push_back(Seconds() - begin);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats) / 2];
}

// False: an operation failed.
bool Measure(RealDevice* device, DomainQueue* queue, size_t bytes, int repeats) {
  using Kind = DevicePlace::Kind;
  DevicePlace a(Kind::kDevice, bytes, device);
  DevicePlace b(Kind::kDevice, bytes, device);
  DevicePlace slot(Kind::kSlot, bytes, device);
  DevicePlace next(Kind::kSlot, bytes, device);
  SliceOp sum;
  sum.count = bytes / sizeof(float);
  sum.inline_src[0] = a.data();
  sum.inline_src[1] = b.data();
  sum.num_sources = 2;
  sum.dst[0] = b.data();
  SliceOp copy = sum;
  copy.num_sources = 1;
  SliceOp load = copy;
  load.inline_src[0] = slot.data();
  SliceOp store = copy;
  store.dst[0] = slot.data();
  SliceOp hop = sum;
  hop.inline_src[0] = slot.data();
  hop.dst[0] = next.data();
  const std::pair<const char*, const SliceOp*> cases[] = {{"device copy", &copy},
                                                          {"device sum", &sum},
                                                          {"slot to device", &load},
                                                          {"device to slot", &store},
                                                          {"slot + device to slot", &hop}};
  for (const auto& [name, op] : cases) {
    const double seconds = TimeOf(queue, *op, repeats);
    if (seconds <= 0) return Report(name, "the operation failed");
    std::printf("time %-22s %10zu bytes %10.2f us %8.2f GB/s of result\n", name, bytes, seconds * 1e6,
                static_cast<double>(bytes) / seconds / 1e9);
  }
  return true;
}

int Probe(const std::string& driver, int rounds) {
  std::unique_ptr<RealDevice> device;
  const Status status = RealDevice::Open(driver, &device);
  if (!status.ok()) {
    std::printf("no GPU: %s\n", status.message().c_str());
    return kNoGpu;
  }
  std::printf("driver %d\n", device->driver().version());
  const double begin = Seconds();
  bool ok = Report("device", CheckDevice(device.get()));
  std::printf("time context and kernels %.1f ms\n", (Seconds() - begin) * 1e3);
  if (cuda::KernelImage().empty()) {
    std::printf("not run kernels: this build of Annulus has none\n");
  } else {
    ok &= Report("kernels", CheckKernels(device.get()));
  }
  ok &= Report("pointers", CheckPointers(device.get()));
  ok &= Report("pins", CheckPins(device.get()));
  if (const std::string missing = VirtualMemoryMissing(device.get()); missing.empty()) {
    ok &= Report("virtual memory", CheckVirtualMemory(device.get()));
    ok &= Report("memory by descriptors in another process", CheckFilesOfMemory(device.get(), driver));
  } else {
    std::printf("not run virtual memory: %s\nnot run memory by descriptors in another process\n", missing.c_str());
  }
  if (const std::string missing = PeersMissing(device.get()); missing.empty()) {
    ok &= Report("memory of another GPU", CheckPeers(device.get(), rounds / 20 + 2));
  } else {
    std::printf("not run memory of another GPU: %s\n", missing.c_str());
  }
  ok &= Report("reset", CheckReset(driver));
  ok &= Report("copies of opened memory", CheckCopiesOfOpened(device.get(), driver));
  std::unique_ptr<DomainQueue> queue;
  if (!device->domain()->OpenQueue(ReduceOn::kAuto, &queue).ok()) return 1;
  ok &= Report("words and copies", CheckDoneWords(device.get(), queue.get(), rounds));
  ok &= Report("streams", CheckStreams(device.get()));
  ok &= Report("gates", CheckGates(device.get(), rounds / 20 + 2));
  ok &= Report("frees", CheckFrees(device.get()));
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (cuda::KernelImage().empty()) {
    std::printf("not run blocked launch: this build of Annulus has no kernels\n");
  } else {
    ok &= Report("blocked launch", CheckBlockedLaunch(driver));
  }
  if (cuda::KernelImage().empty()) {
    std::printf("not run gated kernels: this build of Annulus has none\n");
  } else if (connections != nullptr && connections == std::string("1")) {
    std::printf("not run gated kernels: all streams share a queue, so none writes before the gate is open\n");
  } else {
    ok &= Report("gated kernels", CheckGatedKernels(device.get(), rounds / 20 + 2));
  }
  ok &= Report("events", CheckEvents(device.get(), rounds / 20 + 2));
  ok &= Report("graphs", CheckGraphs(device.get(), driver, rounds / 3 + 2));
  std::printf("time gate to word %.2f us\n", GateSeconds(device.get(), rounds / 20 + 2) * 1e6);
  ok &= Report("batches", CheckBatches(device.get(), rounds / 20 + 2));
  ok &= Report("bits", CheckBits(device.get(), queue.get(), rounds));
  const bool is_short = rounds < kRounds;
  ok &= Report("times", PrintTimes(device.get(), rounds));
  ok &= Report("rates", PrintRates(device.get(), size_t{is_short ? 1U : 256U} << 20, is_short ? 3 : 20));
  ok &= Report("lazy loading", PrintLazyLoading(device.get()));
  for (const size_t bytes : {size_t{8}, size_t{256} << 10, size_t{is_short ? 1U : 256U} << 20}) {
    ok &= Measure(device.get(), queue.get(), bytes, is_short ? 3 : 50);
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  if (argc > 3 && argv[2] == std::string("take-files"))
    return annulus::TakeFiles(argv[1], std::strtoull(argv[3], nullptr, 10));
  if (argc > 4 && argv[2] == std::string("alone")) return annulus::ProbeAlone(argv[1], argv[3], argv[4]);
  return annulus::Probe(argc > 1 ? argv[1] : "libcuda.so.1", argc > 2 ? std::atoi(argv[2]) : annulus::kRounds);
}
