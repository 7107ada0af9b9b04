#include "collectives/choice/tuning_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file_limit.h"

namespace annulus {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "annulus tuning";
constexpr int kVersion = 2;             // Version of the format, the model, and the nominal costs of the factors.
constexpr size_t kMostBytes = 1 << 20;  // The largest file written has the hosts of 65,536 ranks, 0.6 MiB.
constexpr int kMostDepth = 8;           // Nested deeper, it would be copied with as many calls on the stack.

// Closes it.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }
  // Some file systems tell only then that there was no room.
  bool Close() { return close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

json Describe(const TuningSubject& subject) {
  json job = {{"nranks", subject.nranks},
              {"host_of", subject.host_of},
              {"near", subject.near},
              {"far", subject.far},
              {"ranks_per_core", subject.ranks_per_core},
              {"small_bytes", subject.small_bytes},
              {"slice_bytes", subject.slice_bytes},
              {"channels", subject.channels}};
  for (const auto& [name, value] : subject.transport_settings) job[name] = value;
  return job;
}

std::string FileText(const std::string& path) { return "the tuning file " + path + " (ANNULUS_TUNING_FILE)"; }

Status Broken(const std::string& path, const std::string& why) {
  return Status::Invalid(FileText(path) + " is broken: " + why + "; without it, it is written anew");
}

bool ReadFactor(const json& entry, const char* name, double* factor) {
  const auto found = entry.find(name);
  if (found == entry.end() || !found->is_number()) return false;
  *factor = found->get<double>();
  return *factor >= kLeastFactor && *factor <= kMostFactor;
}

// Reads a regular file that is not too large, and nothing else. Links are followed, because their targets are only
// read.
Status ReadText(const std::string& path, std::optional<std::string>* text) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0 && errno == ENOENT) return Status();
  struct stat kind {};
  if (file.get() < 0 || fstat(file.get(), &kind) != 0) return Status::System("cannot read " + FileText(path), errno);
  if (!S_ISREG(kind.st_mode)) return Status::Invalid(FileText(path) + " is no regular file");
  std::string content(kMostBytes + 1, '\0');
  size_t have = 0;
  while (have < content.size()) {
    const ssize_t got = read(file.get(), content.data() + have, content.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::System("cannot read " + FileText(path), errno);
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  if (have > kMostBytes) return Broken(path, "it is larger than 1 MiB");
  content.resize(have);
  *text = std::move(content);
  return Status();
}

Status ParseObject(const std::string& path, const std::string& text, json* content) {
  bool too_deep = false;
  const auto is_shallow = [&too_deep](int depth, json::parse_event_t, const json&) {
    too_deep |= depth > kMostDepth;
    return !too_deep;
  };
  *content = json::parse(text, is_shallow, false);
  if (too_deep) return Broken(path, "it is nested too deeply");
  return content->is_object() ? Status() : Broken(path, "it is no JSON object");
}

bool WriteAll(int file, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t put = write(file, text.data() + done, text.size() - done);
    if (put < 0 && errno != EINTR) return false;
    if (put > 0) done += static_cast<size_t>(put);
  }
  return true;
}

}  // namespace

Status ReadTuningFile(const std::string& path, const TuningSubject& subject, std::optional<MeasuredFactors>* factors) {
  factors->reset();
  std::optional<std::string> text;
  ANNULUS_RETURN_IF_ERROR(ReadText(path, &text));
  if (!text) return Status();
  json content;
  ANNULUS_RETURN_IF_ERROR(ParseObject(path, *text, &content));
  if (content.value("format", json()) != kFormat) return Broken(path, "it is no tuning file");
  if (content.value("version", json()) != kVersion) return Status();
  if (content.value("job", json()) != Describe(subject)) return Status();
  const json algorithms = content.value("algorithms", json());
  if (!algorithms.is_object()) return Broken(path, "\"algorithms\" is missing");
  MeasuredFactors read{};
  for (size_t place = 0; place < read.size(); ++place) {
    const auto entry = algorithms.find(kAlgorithms[place].name);
    if (entry == algorithms.end()) continue;
    AlgorithmFactors& own = read[place];
    own.is_measured = 1;
    const bool right = entry->is_object() && ReadFactor(*entry, "message_factor", &own.message) &&
                       ReadFactor(*entry, "byte_factor", &own.byte) && ReadFactor(*entry, "large_factor", &own.large);
    if (!right) return Broken(path, std::string("the factors of \"") + kAlgorithms[place].name + "\" are wrong");
  }
  *factors = read;
  return Status();
}

Status WriteTuningFile(const std::string& path, const TuningSubject& subject, const MeasuredFactors& factors) {
  json algorithms = json::object();
  for (size_t place = 0; place < factors.size(); ++place) {
    const AlgorithmFactors& own = factors[place];
    if (own.is_measured == 0) continue;
    algorithms[kAlgorithms[place].name] = {
        {"message_factor", own.message}, {"byte_factor", own.byte}, {"large_factor", own.large}};
  }
  const json content = {
      {"format", kFormat}, {"version", kVersion}, {"job", Describe(subject)}, {"algorithms", algorithms}};
  constexpr mode_t kReadableByAll = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
  const FileLimitGuard guard;
  std::string draft = path + ".XXXXXX";
  File file(mkostemp(draft.data(), O_CLOEXEC));
  if (file.get() < 0) return Status::System("cannot write " + FileText(path), errno);
  const bool good = WriteAll(file.get(), content.dump(1) + "\n") && fchmod(file.get(), kReadableByAll) == 0 &&
                    fsync(file.get()) == 0 && file.Close() && std::rename(draft.c_str(), path.c_str()) == 0;
  if (good) return Status();
  const int cause = errno;
  unlink(draft.c_str());
  return Status::System("cannot write " + FileText(path) + FileLimitText(cause), cause);
}

}  // namespace annulus
