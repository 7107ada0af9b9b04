// Two ranks of one process that connect over shared memory, for the tests of its set-up.
//
// Threads: one for each rank, while Run does not return.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "tests/transport/shm/shm_pair.h"
#include "transport/reactor.h"
#include "transport/shm/shm.h"
#include "transport/transport.h"

namespace annulus {

// Connects rank 0 and rank 1, each with its key, in two threads.
struct ShmMeeting {
  void Run(const std::string& key0, const std::string& key1, Nanoseconds patience) {
    std::promise<std::string> addresses[2];
    std::shared_future<std::string> known[2] = {addresses[0].get_future().share(), addresses[1].get_future().share()};
    const Deadline deadline = DeadlineAfter(patience);
    const auto connect = [&](int rank) {
      TransportConfig config;
      config.rank = rank;
      config.slot_bytes = 4096;
      config.slots = slots[rank];
      config.reactor = &reactors[rank];
      const auto exchange = [&](const std::string& own) {
        addresses[rank].set_value(own);
        return known[1 - rank].get();
      };
      statuses[rank] =
          ConnectOne(config, rank == 0 ? key0 : key1, CreateShmTransport, exchange, deadline, &endpoints[rank]);
    };
    std::thread other(connect, 1);
    connect(0);
    other.join();
  }

  Reactor reactors[2];
  int slots[2] = {4, 4};
  Status statuses[2];
  std::unique_ptr<Endpoint> endpoints[2];
};

}  // namespace annulus
