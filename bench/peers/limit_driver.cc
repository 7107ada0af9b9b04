// Limits: plain work that stands for the least that a collective has to do, as one more driver beside the libraries.
//
// usage: DRIVER SOCKET exchange FILE   allreduce over shared memory through slots (exchange.h); FILE is shared by the
// ranks
//        DRIVER SOCKET copy            every rank copies its input to its output (bench/perf/perf_limit_copy.h)
//        DRIVER SOCKET sockets         the bytes of a ring over plain sockets, both ways at once
//        (bench/perf/perf_limit_socket.h)
// Only exchange has results. The ranks find each other as a job of Annulus's.
//
// Threads: one, besides Annulus's own, which have nothing to do.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/peers/exchange.h"
#include "bench/peers/peer_calls.h"
#include "bench/perf/limit/perf_limit_copy.h"
#include "bench/perf/limit/perf_limit_socket.h"

const int kPeerResultAtStart = 0;

namespace annulus::peers {
namespace {

constexpr size_t kSmallBytes = 512;              // One hop of a few lines cannot be beaten.
constexpr size_t kLargeBytes = size_t{4} << 20;  // Outputs miss the caches, where stores around them win.

struct Driver {
  std::string mode;
  annulus_config_t config{};
  std::unique_ptr<perf::Group> group;
  std::optional<Exchange> exchange;
  std::unique_ptr<perf::Probe> probe;
  std::vector<Exchange::Way> ways;
  std::unique_ptr<uint8_t, decltype(&std::free)> output{nullptr, &std::free};  // In place: what is copied to.
  size_t pass_bytes = 0;
};

Driver driver;

void Need(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

perf::Kind KindOf(const PeerCase& work) {
  constexpr perf::Kind kKinds[] = {perf::Kind::kAllreduce, perf::Kind::kBroadcast, perf::Kind::kReduceScatter,
                                   perf::Kind::kAllgather};
  return kKinds[work.kind];
}

// The ways that may be the best one; which is depends on the distance of the processors too.
std::vector<Exchange::Way> Ways(size_t bytes) {
  if (bytes <= kSmallBytes) return {{true, {}}};
  if (bytes <= Exchange::kOneHopBytes) {
    return {{true, {}},  {true, {false, true}},  {true, {}, true},
            {false, {}}, {false, {false, true}}, {false, {}, true}};
  }
  if (bytes < kLargeBytes) return {{false, {}}, {false, {false, true}}, {false, {}, true}};
  return {{false, {}}, {false, {true, false}}, {false, {true, true}}};
}

// The probes move bytes from one buffer to another, in whatever form the call is.
perf::Arena ArenaFor(void* send, void* recv, size_t bytes) {
  driver.output.reset();
  if (send == recv) {
    constexpr size_t kPageBytes = 4096;
    recv = std::aligned_alloc(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
    if (recv == nullptr) Need({Code::kOutOfMemory, "no memory for an output"});
    std::memset(recv, 0, bytes);
    driver.output.reset(static_cast<uint8_t*>(recv));
  }
  return {static_cast<const uint8_t*>(send), static_cast<uint8_t*>(recv), bytes};
}

}  // namespace
}  // namespace annulus::peers

using annulus::peers::driver;
using annulus::peers::Need;

void PeerStart(int* argc, char*** argv, int* rank, int* size) {
  if (*argc < 3) {
    std::fprintf(stderr, "usage: %s SOCKET exchange FILE|copy|sockets\n", (*argv)[0]);
    std::exit(2);
  }
  driver.mode = (*argv)[2];
  annulus_config_init(&driver.config, sizeof driver.config, ANNULUS_FROM_ENVIRONMENT | ANNULUS_FROM_LAUNCHER);
  Need(annulus::perf::Group::Join(driver.config, &driver.group));
  *rank = driver.group->rank();
  *size = driver.group->size();
  if (driver.mode == "exchange") {
    driver.exchange.emplace();
    Need(annulus::peers::Exchange::Open(*argc > 3 ? (*argv)[3] : "", *rank, *size, &*driver.exchange));
  }
}

int PeerHasResults() { return driver.mode == "exchange"; }

int PeerSupports(const PeerCase* work) {
  return work->type == kPeerFloat32 && work->kind < kPeerIallreduce &&
         (driver.mode != "exchange" || work->kind == kPeerAllreduce);
}

void PeerPrepare(const PeerCase* work, void* send, void* recv, size_t bytes) {
  if (driver.exchange) {
    driver.ways = annulus::peers::Ways(bytes);
    return;
  }
  const annulus::perf::Arena arena = annulus::peers::ArenaFor(send, recv, bytes);
  driver.probe.reset();
  if (driver.mode == "copy") {
    Need(annulus::perf::CopyProbe::Create(*driver.group, arena, &driver.probe));
  } else {
    std::string why_not;
    const std::vector<bool> edges(static_cast<size_t>(driver.group->size()), true);
    Need(annulus::perf::SocketProbe::Create(*driver.group, driver.config, edges, arena, &driver.probe, &why_not));
    if (!driver.probe) Need({annulus::Code::kSystem, why_not});
  }
  driver.pass_bytes = driver.probe->PassBytes(annulus::peers::KindOf(*work), bytes, driver.group->size());
}

int PeerVariants(const PeerCase*) {
  return driver.exchange ? static_cast<int>(driver.ways.size()) : driver.probe->Variants(driver.pass_bytes);
}

void PeerCall(const PeerCase* work, void* send, void* recv) {
  if (driver.exchange) {
    const auto& way = driver.ways[static_cast<size_t>(work->variant)];
    Need(driver.exchange->Allreduce(static_cast<const float*>(send), static_cast<float*>(recv), work->count, way));
  } else {
    Need(driver.probe->Pass(annulus::peers::KindOf(*work), driver.pass_bytes, work->variant));
  }
}

void PeerBarrier() { Need(driver.exchange ? driver.exchange->Barrier() : driver.group->Barrier()); }

void PeerStop() {
  driver.probe.reset();
  driver.exchange.reset();
  driver.group.reset();
}
