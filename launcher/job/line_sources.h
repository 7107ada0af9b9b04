// LineSources: the output streams of all ranks of a host.
//
// Threads: one.
#pragma once

#include <poll.h>

#include <algorithm>
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
  void OnPolled(const pollfd* polled) {
    for (const auto& source : sources_) {
      if ((polled++)->revents != 0) source->ReadSome();
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
};

}  // namespace annulus
