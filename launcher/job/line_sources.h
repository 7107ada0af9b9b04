// LineSources: the output streams of all ranks of a host.
//
// Threads: one.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/output.h"

namespace annulus {

class LineSources {
 public:
  // As LineSource's constructor.
  void Add(int fd, LineTarget* target, std::optional<std::string> prefix) {
    sources_.push_back(std::make_unique<LineSource>(fd, target, std::move(prefix)));
  }

  // Adds an entry for each stream; OnPolled reads as many.
  void AddPolled(std::vector<pollfd>* polled) const {
    for (const auto& source : sources_) polled->push_back({source->target()->full() ? -1 : source->fd(), POLLIN, 0});
  }
  // A stream whose target has become full waits for the next round, which begins with the first of those that waited:
  // otherwise the streams of the first ranks could fill the target in every round.
  void OnPolled(const pollfd* polled) {
    const size_t first = next_;
    bool waits = false;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const size_t index = (first + i) % sources_.size();
      if (polled[index].revents == 0) continue;
      if (!sources_[index]->target()->full()) {
        sources_[index]->ReadSome();
      } else if (!waits) {
        waits = true;
        next_ = index;
      }
    }
  }

  // Closes streams that nobody reads any more. Their ranks get what they would get without annulus-run: SIGPIPE or
  // EPIPE at the next write.
  void CloseOrphaned() {
    for (const auto& source : sources_) {
      if (source->target()->broken()) source->Close();
    }
  }

  // Reads what is left; all ranks are gone (LineSource::Drain).
  void Drain() {
    for (const auto& source : sources_) source->Drain();
  }

  bool all_closed() const {
    return std::ranges::all_of(sources_, [](const auto& source) { return source->fd() < 0; });
  }

 private:
  std::vector<std::unique_ptr<LineSource>> sources_;
  size_t next_ = 0;  // Index of the stream that is read first.
};

}  // namespace annulus
