// PostedMessages: what is posted for Messages, in place of a communicator's queue.
//
// Threads: one at a time.
#pragma once

#include <atomic>
#include <deque>

#include "collectives/engine/messages.h"

namespace annulus {

struct PostedMessages {
  void Add(const Message& message) {
    messages.push_back(message);
    has_any = true;
  }
  // As MessagesConfig::first_posted and accept_first.
  bool First(Message* message) const {
    if (!messages.empty()) *message = messages.front();
    return !messages.empty();
  }
  void AcceptFirst() {
    messages.pop_front();
    has_any = !messages.empty();
  }

  std::deque<Message> messages;
  std::atomic<bool> has_any{false};
};

}  // namespace annulus
