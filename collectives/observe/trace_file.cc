#include "collectives/observe/trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/file_limit.h"
#include "base/log.h"

namespace annulus {
namespace {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// Whether another process has a trace in that file: it keeps it locked to its end.
bool IsInUseElsewhere(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  return file.get() >= 0 && flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

// Traces of this process that have not ended, the names in use, and the files with those names.
class Registry {
 public:
  Registry() : process_(getpid()) {
    std::atexit([] { Get().WriteAll(); });
  }

  // Lives as long as the process: a communicator may be destroyed after everything else.
  static Registry& Get() {
    static Registry& registry = *std::make_unique<Registry>().release();
    return registry;
  }

  // Number of files with that name, including this one. A name that another process uses gets this one's number first.
  int CountUse(std::string* path) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!uses_.contains(*path) && IsInUseElsewhere(*path)) *path += ".p" + std::to_string(getpid());
    return ++uses_[*path];
  }
  // Keeps the file, which is locked, open in place of what was there before.
  void Keep(const std::string& path, Descriptor file) {
    const std::lock_guard<std::mutex> lock(written_mutex_);
    written_[path] = std::move(file);
  }

  void Add(TraceFile* file) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (getpid() != process_) files_.clear();  // A forked child has only copies of its parent's.
    process_ = getpid();
    files_.insert(file);
  }
  void Remove(TraceFile* file) {
    const std::lock_guard<std::mutex> lock(mutex_);
    files_.erase(file);
  }

 private:
  void WriteAll() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (getpid() != process_) return;
    for (TraceFile* file : files_) static_cast<void>(file->Write());
  }

  std::mutex mutex_;
  pid_t process_;
  std::map<std::string, int> uses_;
  std::mutex written_mutex_;  // The last to be locked: traces are written under the other one.
  std::map<std::string, Descriptor> written_;
  std::set<TraceFile*> files_;
};

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

std::string TracePath(const std::string& pattern, int rank) {
  const std::string number = std::to_string(rank);
  std::string path;
  bool placed = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern.compare(i, 2, "%r") == 0) {
      path += number;
      placed = true;
      ++i;
    } else {
      path += pattern[i];
    }
  }
  return placed ? path : path + "." + number;
}

Status TraceFile::Create(const std::string& pattern, const TraceOwner& owner, std::unique_ptr<TraceFile>* file) {
  std::string path = TracePath(pattern, owner.process_rank);
  TraceOwner numbered = owner;
  const std::string wanted = path;
  numbered.communicator = Registry::Get().CountUse(&path);
  if (path != wanted)
    Log(LogLevel::kInfo, owner.process_rank, "the trace goes to %s: another process has %s", path.c_str(),
        wanted.c_str());
  if (numbered.communicator > 1) path += "." + std::to_string(numbered.communicator);
  std::unique_ptr<TraceFile> made(new TraceFile(std::move(path), numbered));
  Status written = made->Write();  // Reveals a wrong name now, not at the end of the job.
  Registry::Get().Add(made.get());
  *file = std::move(made);
  return written;
}

TraceFile::~TraceFile() {
  Registry::Get().Remove(this);
  const Status written = Write();
  if (written.code() == Code::kOutOfMemory) {
    Log(LogLevel::kWarn, owner_.process_rank, "no memory was left to write the trace (ANNULUS_TRACE)");
  } else if (!written.ok()) {
    Log(LogLevel::kWarn, owner_.process_rank, "%s", written.message().c_str());
  }
}

Status TraceFile::Write(size_t most_events) {
  try {
    return WriteNewest(most_events);
  } catch (const std::bad_alloc&) {  // Nothing that a trace needs may end a program.
    return Status(Code::kOutOfMemory);
  }
}

Status TraceFile::WriteNewest(size_t most_events) {
  const std::lock_guard<std::mutex> lock(write_mutex_);
  const FileLimitGuard guard;
  const std::string part = path_ + ".part";
  const auto failed = [this](int cause) {
    return Status::System("cannot write the trace (ANNULUS_TRACE) " + path_ + FileLimitText(cause), cause);
  };
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return failed(errno);
  std::unique_ptr<std::FILE, CloseFile> file(fdopen(fd, "w"));
  if (file == nullptr) {
    const int cause = errno;
    close(fd);
    return failed(cause);
  }
  Descriptor locked(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  flock(fd, LOCK_EX | LOCK_NB);  // Where that fails, others may write there too.
  errno = 0;
  WriteTraceJson(owner_, trace_.Read(Now(), most_events), file.get());
  const bool written = std::fflush(file.get()) == 0 && std::ferror(file.get()) == 0;
  // Some file systems tell only then that there was no room.
  const bool complete = std::fclose(file.release()) == 0 && written;
  if (complete && std::rename(part.c_str(), path_.c_str()) == 0) {
    Registry::Get().Keep(path_, std::move(locked));
    return Status();
  }
  const int cause = errno;
  unlink(part.c_str());
  return failed(cause);
}

}  // namespace annulus
