// Gloo's ring over TCP. The last four words of the command line are for this driver: RANK SIZE ADDRESS FOLDER, the
// address to listen at and a folder that all ranks see, empty at first, in which they find each other.
//
// Threads: the one that calls; Gloo has one of its own for the sockets.
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/peers/peer_bench.h"

namespace {

constexpr int kOwnWords = 4;
constexpr std::chrono::minutes kTimeout(10);

// A loop that the compiler vectorises: kinder than Gloo's own in Debian's package, which is built without AVX.
template <typename T, typename Combine>
gloo::AllreduceOptions::Func Reduction(Combine combine) {
  return [combine](void* to, const void* left, const void* right, size_t count) {
    T* const result = static_cast<T*>(to);
    const T* const a = static_cast<const T*>(left);
    const T* const b = static_cast<const T*>(right);
    for (size_t i = 0; i < count; ++i) result[i] = combine(a[i], b[i]);
  };
}

std::shared_ptr<gloo::rendezvous::Context>& Job() {
  static std::shared_ptr<gloo::rendezvous::Context> job;
  return job;
}

// Gloo reports failures as exceptions; a benchmark can only say so.
template <typename Act>
void Need(Act act) {
  try {
    act();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo: %s\n", error.what());
    std::exit(1);
  }
}

template <typename T>
void Allreduce(const T* send, T* recv, size_t count, const gloo::AllreduceOptions::Func& reduce) {
  gloo::AllreduceOptions options(Job());
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  if (send != recv) options.setInput(const_cast<T*>(send), count);  // Gloo only reads it.
  options.setOutput(recv, count);
  options.setReduceFunction(reduce);
  options.setTimeout(kTimeout);
  Need([&options] { gloo::allreduce(options); });
}

}  // namespace

void PeerStart(int* argc, char*** argv, int* rank, int* size) {
  if (*argc <= kOwnWords) {
    std::fprintf(stderr, "usage: %s ... RANK SIZE ADDRESS FOLDER\n", **argv);
    std::exit(2);
  }
  *argc -= kOwnWords;
  char** const words = *argv + *argc;
  *rank = std::atoi(words[0]);
  *size = std::atoi(words[1]);
  Need([rank, size, words] {
    gloo::transport::tcp::attr address(words[2]);
    gloo::rendezvous::FileStore store(words[3]);
    Job() = std::make_shared<gloo::rendezvous::Context>(*rank, *size);
    Job()->setTimeout(kTimeout);
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(address);
    Job()->connectFullMesh(store, device);
  });
}

void PeerAllreduce(const float* send, float* recv, size_t count) {
  static const auto kSum = Reduction<float>([](float a, float b) { return a + b; });
  Allreduce(send, recv, count, kSum);
}

double PeerMax(double value) {
  static const auto kMax = Reduction<double>([](double a, double b) { return std::max(a, b); });
  Allreduce(&value, &value, 1, kMax);
  return value;
}

void PeerStop(void) { Job().reset(); }
