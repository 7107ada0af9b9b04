// TraceFile: the file for a communicator's trace. It is written when the communicator fails, when it is destroyed, and
// when the program exits normally before that. Each time the whole file is written and put in place by a rename, so a
// reader never sees half a file.
//
// Threads: Write from any; the rest from one.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "collectives/observe/trace.h"
#include "collectives/observe/trace_json.h"

namespace annulus {

class TraceFile {
 public:
  // `pattern` is the setting. "%r" in it stands for owner.process_rank, which is appended where "%r" is missing. The
  // second communicator of the process with that name gets ".2" appended, and so on; owner.communicator is filled in. A
  // name in which another process has written its trace, and has not ended since, gets ".p" and this process's number.
  // Errors: kSystem  the file cannot be written now. *file is set all the same: it may be possible later.
  static Status Create(const std::string& pattern, const TraceOwner& owner, std::unique_ptr<TraceFile>* file);

  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  Trace* trace() { return &trace_; }
  const std::string& path() const { return path_; }

  // Number of events written after a failure, within some ten milliseconds: launchers end all ranks soon after the
  // first.
  static constexpr size_t kFailureEvents = 8192;

  // Writes the newest events as of now. Errors: kSystem; kOutOfMemory, without words.
  Status Write(size_t most_events = Trace::kEvents);

 private:
  Status WriteNewest(size_t most_events);

  TraceFile(std::string path, const TraceOwner& owner) : path_(std::move(path)), owner_(owner) {}

  const std::string path_;
  const TraceOwner owner_;
  Trace trace_;
  std::mutex write_mutex_;
};

// Name of the file for that rank, before anything is appended for further communicators.
std::string TracePath(const std::string& pattern, int rank);

}  // namespace annulus
