#include "launcher/local/verdict_notes.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "collectives/observe/verdict_note.h"
#include "launcher/job/failure.h"

namespace annulus {
namespace {

constexpr std::string_view kVariable = "ANNULUS_VERDICTS=";

}  // namespace

VerdictNotes::VerdictNotes() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  reader_ = ends[0];
  writer_ = ends[1];
  shutdown(reader_, SHUT_WR);
  fcntl(writer_, F_SETFD, 0);
}

VerdictNotes::~VerdictNotes() {
  for (const int fd : {reader_, writer_}) {
    if (fd >= 0) close(fd);
  }
}

void VerdictNotes::AddVariable(int rank, std::vector<std::string>* environment) const {
  // A job within a job: the outer one's variable must not come first.
  std::erase_if(*environment, [](const std::string& entry) { return entry.starts_with(kVariable); });
  struct stat status;
  if (writer_ < 0 || fstat(writer_, &status) != 0) return;
  environment->push_back(std::string(kVariable) + std::to_string(writer_) + ":" + std::to_string(status.st_ino) + ":" +
                         std::to_string(rank));
}

int VerdictNotes::BlamedBy(int rank) {
  Read();
  const auto found = blamed_.find(rank);
  return found == blamed_.end() ? Failure::kNobody : found->second;
}

void VerdictNotes::Read() {
  VerdictNote note;
  while (reader_ >= 0 && recv(reader_, &note, sizeof note, MSG_DONTWAIT) == sizeof note) {
    blamed_.emplace(note.rank, note.culprit < 0 ? Failure::kAnother : note.culprit);
  }
}

}  // namespace annulus
