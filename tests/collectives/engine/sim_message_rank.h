// SimMessageRank: one rank of a simulated job that moves messages: its links, its device if it has one, and Messages.
//
// Threads: one at a time.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "collectives/algorithms/table.h"
#include "collectives/engine/messages.h"
#include "collectives/observe/monitor.h"
#include "tests/collectives/engine/posted_messages.h"
#include "tests/device/sim_device.h"
#include "transport/sim/sim_world.h"

namespace annulus {

class SimMessageRank {
 public:
  // `done` is called as MessagesConfig says. All ranks of `world`, which outlives them, have the same plan.
  SimMessageRank(SimWorld* world, int rank, const PlanSettings& plan,
                 std::function<void(void* cookie, int peer, int32_t tag)> done)
      : world_(world), rank_(rank) {
    const int n = world->options().nranks;
    links_ = std::make_unique<Links>(n, plan.channels + 1);
    for (const NeededLink& link : LinksNeeded(rank, {plan, Topology(n)}))
      links_->Add(link.peer, link.channel, world->MakeEndpoint(rank, link.peer, link.channel));
    monitor_ = std::make_unique<Monitor>(n);
    MessagesConfig config;
    config.rank = rank;
    config.nranks = n;
    config.plan = plan;
    config.links = links_.get();
    config.monitor = monitor_.get();
    config.timeout = kNever;
    config.has_posted = &posted_->has_any;
    config.first_posted = [posted = posted_.get()](Message* message) { return posted->First(message); };
    config.accept_first = [posted = posted_.get()] { posted->AcceptFirst(); };
    config.done = std::move(done);
    messages_ = std::make_unique<Messages>(std::move(config));
    world->SetControl(rank, {[](int, std::string) {}, [](int) {}});
  }
  SimMessageRank(SimMessageRank&&) = default;
  ~SimMessageRank() {
    if (links_ != nullptr) End();  // Null: moved from.
  }

  // A device whose work takes its time. It belongs to the rank.
  SimDevice* OpenDevice(uint64_t seed) {
    device_ = std::make_unique<SimDevice>(SimDeviceOptions{seed, 16, &world_->clock()});
    EXPECT_TRUE(device_->OpenQueue(ReduceOn::kAuto, &queue_).ok());
    return device_.get();
  }

  void Post(const Message& message) { posted_->Add(message); }

  // Moves what can be moved now, unless the rank is dead or has failed. Returns whether something changed.
  bool Drive() {
    if (!world_->runs(rank_) || !status_.ok()) return false;
    bool moved = false;
    // Now and then links move for which there may be no message, as those do that a driver tends.
    if (++drives_ % 5 == 0) {
      for (const auto& link : links_->all()) static_cast<void>(link->Progress(&moved));
    }
    if (!messages_->busy()) return moved;
    status_ = messages_->Progress(&moved);
    if (status_.ok()) return moved;
    End();
    return true;
  }

  // As a communicator that fails or ends.
  void End() {
    if (queue_ != nullptr) queue_->Drain();
    links_->Close();
  }

  Messages& messages() { return *messages_; }
  Endpoint* link(int peer, int channel) { return links_->At(peer, channel); }
  SimDevice* device() { return device_.get(); }  // Null: it has none.
  DomainQueue* queue() { return queue_.get(); }  // The queue of its device.
  bool busy() const { return messages_->busy(); }
  const Status& status() const { return status_; }

 private:
  // Deadlines are in the time of the machine, which stands still here: nothing may end by one.
  static constexpr Nanoseconds kNever = 24 * 3600 * kSecond;

  SimWorld* world_;
  int rank_;
  uint64_t drives_ = 0;
  std::unique_ptr<SimDevice> device_;
  std::unique_ptr<DomainQueue> queue_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<PostedMessages> posted_ = std::make_unique<PostedMessages>();
  std::unique_ptr<Messages> messages_;
  Status status_;
};

}  // namespace annulus
