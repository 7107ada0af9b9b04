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
  // As MessagesConfig::next_posted.
  bool Take(Message* message) {
    if (messages.empty()) return false;
    *message = messages.front();
    messages.pop_front();
    has_any = !messages.empty();
    return true;
  }

  std::deque<Message> messages;
  std::atomic<bool> has_any{false};
};

}  // namespace annulus
