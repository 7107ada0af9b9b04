#include "transport/memory/memory_pages.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>

#include "base/text_file.h"

namespace annulus {
namespace {

// Pages move in parts of this size, so that there is never much memory in use twice.
constexpr size_t kPartBytes = 16 << 20;

struct Mapping {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  char access[5] = {};
  unsigned long inode = 0;
  std::string name;
};

// One line of /proc/self/maps, whose form proc(5) gives.
bool Parse(const std::string& line, Mapping* mapping) {
  int name_at = 0;
  const int fields = std::sscanf(line.c_str(), "%lx-%lx %4s %*x %*x:%*x %lu %n", &mapping->begin, &mapping->end,
                                 mapping->access, &mapping->inode, &name_at);
  if (fields != 4) return false;
  mapping->name = line.substr(std::min(line.size(), static_cast<size_t>(name_at)));
  return true;
}

bool IsPrivateAnonymous(const Mapping& mapping) {
  // The heap and stacks, which the kernel names, change their size; [anon:...] is a name that a program gave.
  const bool plain = mapping.name.empty() || mapping.name.rfind("[anon:", 0) == 0;
  return std::strcmp(mapping.access, "rw-p") == 0 && mapping.inode == 0 && plain;
}

Status NotMovable(uintptr_t address, const std::string& what) {
  char text[32];
  std::snprintf(text, sizeof(text), "%#lx", address);
  return {
      Code::kUnsupported,
      "mem_register: the memory at " + std::string(text) + " is " + what +
          "; only private anonymous mappings that can be written can be shared. mem_alloc gives memory that peers can "
          "read, and malloc such mappings for blocks beyond its M_MMAP_THRESHOLD, which grows when one is freed"};
}

// A failure of file and memory calls for want of memory is that, whatever it is called.
Status Failed(const char* what, int error) {
  if (error == ENOMEM || error == ENOSPC) return {Code::kOutOfMemory, std::string(what) + ": no memory", -1, error};
  return Status::System(what, error);
}

Status MovePartBack(std::byte* part, size_t bytes) {
  void* const copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return Failed("private memory for what was registered", errno);
  std::memcpy(copy, part, bytes);
  if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, part) != MAP_FAILED) return Status();
  const int error = errno;
  munmap(copy, bytes);
  return Failed("moving what was registered back", error);
}

Status MovePartToFile(std::byte* part, size_t bytes, int fd, off_t offset) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t written = pwrite(fd, part + done, bytes - done, offset + static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failed("filling a memory file", written < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(written);
  }
  if (mmap(part, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset) == MAP_FAILED)
    return Failed("mapping a memory file in place", errno);
  return Status();
}

}  // namespace

size_t PageBytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t RoundUpToPage(size_t bytes) { return (bytes + PageBytes() - 1) / PageBytes() * PageBytes(); }

Status CheckPrivateAnonymous(const std::byte* begin, size_t bytes) {
  const std::string text = ReadTextFile("/proc/self/maps");
  if (text.empty()) return Status::System("reading /proc/self/maps", errno);
  std::istringstream maps(text);
  uintptr_t next = reinterpret_cast<uintptr_t>(begin);  // All before it is fine.
  const uintptr_t end = next + bytes;
  std::string line;
  while (next < end && std::getline(maps, line)) {
    Mapping mapping;
    if (!Parse(line, &mapping)) return {Code::kUnsupported, "mem_register: /proc/self/maps is not as expected"};
    if (mapping.end <= next) continue;
    if (mapping.begin > next) break;
    if (!IsPrivateAnonymous(mapping))
      return NotMovable(next, std::string(mapping.access) + " " + (mapping.name.empty() ? "memory" : mapping.name));
    next = mapping.end;
  }
  return next < end ? NotMovable(next, "not mapped") : Status();
}

Status MovePagesToFile(std::byte* begin, size_t bytes, int fd) {
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(kPartBytes, bytes - done);
    Status moved = MovePartToFile(begin + done, part, fd, static_cast<off_t>(done));
    if (!moved.ok()) {
      if (done > 0) (void)MovePagesBack(begin, done);  // Shared or not, the content is there.
      return moved;
    }
    done += part;
  }
  return Status();
}

Status MovePagesBack(std::byte* begin, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(kPartBytes, bytes - done);
    ANNULUS_RETURN_IF_ERROR(MovePartBack(begin + done, part));
    done += part;
  }
  return Status();
}

}  // namespace annulus
