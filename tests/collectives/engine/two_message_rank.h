// TwoMessageRank: one of two ranks that exchange messages over one endpoint.
//
// Threads: one at a time.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/engine/messages.h"
#include "collectives/observe/monitor.h"
#include "tests/collectives/engine/posted_messages.h"

namespace annulus {

// One of two ranks. All that it is told of a message's end is in `ended`.
struct TwoMessageRank {
  void Start(int own_rank, std::unique_ptr<Endpoint> endpoint) {
    rank = own_rank;
    MessagesConfig config;
    config.rank = rank;
    config.nranks = 2;
    config.links = &links;
    config.monitor = &monitor;
    config.timeout = 24 * 3600 * kSecond;
    config.has_posted = &posted.has_any;
    config.first_posted = [this](Message* message) { return posted.First(message); };
    config.accept_first = [this] { posted.AcceptFirst(); };
    config.done = [this](void* cookie, int, int32_t) { ended.push_back(cookie); };
    links.Add(1 - rank, MessageChannel(config.plan), std::move(endpoint));
    messages = std::make_unique<Messages>(std::move(config));
  }
  Message MessageOf(bool sends, std::vector<std::byte>* data, void* cookie) const {
    Message message;
    message.sends = sends;
    message.peer = 1 - rank;
    if (sends) {
      message.input = ConstBuffer(data->data());
    } else {
      message.output = Buffer(data->data());
    }
    message.count = data->size();
    message.type = DataType::kInt8;
    message.cookie = cookie;
    return message;
  }
  void Post(const Message& message) { posted.Add(message); }
  Status Progress() {
    bool moved = false;
    return messages->Progress(&moved);
  }
  void Drive() { ASSERT_TRUE(Progress().ok()); }

  int rank = 0;
  Links links{2, 2};
  Monitor monitor{2};
  PostedMessages posted;
  std::vector<void*> ended;
  std::unique_ptr<Messages> messages;
};

}  // namespace annulus
