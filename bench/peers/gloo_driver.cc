// Gloo over TCP. The last four words of the command line are for this driver: RANK SIZE ADDRESS FOLDER, the
// address to listen at and a folder that all ranks see, empty at first, in which they find each other.
//
// Threads: the one that calls; Gloo has one of its own for the sockets.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/peers/peer_calls.h"

const int kPeerResultAtStart = 0;

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

using Algorithm = gloo::AllreduceOptions::Algorithm;

void Allreduce(Algorithm algorithm, const float* send, float* recv, size_t count) {
  static const auto kSum = Reduction<float>([](float a, float b) { return a + b; });
  gloo::AllreduceOptions options(Job());
  options.setAlgorithm(algorithm);
  if (send != recv) options.setInput(const_cast<float*>(send), count);  // Gloo only reads it.
  options.setOutput(recv, count);
  options.setReduceFunction(kSum);
  options.setTimeout(kTimeout);
  Need([&options] { gloo::allreduce(options); });
}

void Broadcast(float* buffer, size_t count) {
  gloo::BroadcastOptions options(Job());
  options.setOutput(buffer, count);
  options.setRoot(0);
  options.setTimeout(kTimeout);
  Need([&options] { gloo::broadcast(options); });
}

void Allgather(float* send, float* recv, size_t count) {
  gloo::AllgatherOptions options(Job());
  if (send != recv) options.setInput(send, count);  // Otherwise the own part is in its place.
  options.setOutput(recv, count * static_cast<size_t>(Job()->size));
  options.setTimeout(kTimeout);
  Need([&options] { gloo::allgather(options); });
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

void PeerAllreduce(const float* send, float* recv, size_t count) { Allreduce(Algorithm::RING, send, recv, count); }

int PeerHasResults() { return 1; }

// Its reduce_scatter is a class of an older interface that keeps the buffer for life.
int PeerSupports(const PeerCase* work) {
  return work->type == kPeerFloat32 && work->kind < kPeerIallreduce && work->kind != kPeerReduceScatter &&
         (work->kind != kPeerBroadcast || work->in_place);
}

void PeerPrepare(const PeerCase*, void*, void*, size_t) {}

// Which of its two algorithms is ahead depends on the size and the number of ranks.
int PeerVariants(const PeerCase* work) { return work->kind == kPeerAllreduce ? 2 : 1; }

void PeerCall(const PeerCase* work, void* send, void* recv) {
  float* const from = static_cast<float*>(send);
  float* const to = static_cast<float*>(recv);
  if (work->kind == kPeerAllreduce) {
    Allreduce(work->variant == 0 ? Algorithm::RING : Algorithm::BCUBE, from, to, work->count);
  } else if (work->kind == kPeerBroadcast) {
    Broadcast(to, work->count);
  } else {
    Allgather(from, to, work->count);
  }
}

void PeerBarrier() {
  gloo::BarrierOptions options(Job());
  options.setTimeout(kTimeout);
  Need([&options] { gloo::barrier(options); });
}

void PeerStop() { Job().reset(); }
