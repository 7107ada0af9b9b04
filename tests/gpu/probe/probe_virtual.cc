#include "tests/gpu/probe/probe_virtual.h"

#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <vector>

#include "collectives/cuda/mapped/cuda_mappings.h"
#include "collectives/cuda/mapped/cuda_pieces.h"
#include "collectives/cuda/mapped/file_post.h"
#include "collectives/cuda/mapped/virtual_range.h"
#include "tests/cuda/mapped_memory.h"

extern char** environ;

namespace annulus {
namespace {

constexpr size_t kPieces = 3;
constexpr int kMostWaitMs = 60'000;

std::string Text(const Status& status) { return status.ok() ? "" : status.ToString(); }

Status MakePieces(RealDevice* device, bool is_shareable, std::unique_ptr<MappedMemory>* memory) {
  // Of one byte each, rounded up.
  ANNULUS_RETURN_IF_ERROR(MappedMemory::Make(device->driver(), device->context(), {1, 1, is_shareable}, memory));
  const size_t unit = (*memory)->piece_bytes();
  return MappedMemory::Make(device->driver(), device->context(), {kPieces * unit, unit, is_shareable}, memory);
}

struct Said {
  unsigned is_legacy = 7;
  unsigned is_mapped = 7;
  uint64_t handles = 0;
  uint64_t id = 0;
  void* pool = nullptr;
  cuda::DevicePointer begin = 0;
  size_t bytes = 0;
};
Said SaidOf(const cuda::Driver& driver, const std::byte* memory) {
  using Attribute = cuda::PointerAttribute;
  Said said;
  Attribute attributes[] = {Attribute::kIsLegacyIpcCapable,
                            Attribute::kIsMapped,
                            Attribute::kShareableHandles,
                            Attribute::kBufferId,
                            Attribute::kRangeStart,
                            Attribute::kRangeSize,
                            Attribute::kPool};
  void* values[] = {&said.is_legacy, &said.is_mapped, &said.handles, &said.id, &said.begin, &said.bytes, &said.pool};
  driver->PointerGetAttributes(std::size(attributes), attributes, values, cuda::ToDevice(memory));
  return said;
}

std::string CheckWords(const cuda::Driver& driver, const MappedMemory& memory, bool is_shareable) {
  const Said said = SaidOf(driver, memory.data() + memory.piece_bytes() + 5);
  const bool has_file = (said.handles & static_cast<uint64_t>(cuda::ShareableHandle::kFile)) != 0;
  std::printf("virtual memory: range of %zu bytes from %+" PRId64 ", buffer ID %" PRIu64 "\n", said.bytes,
              static_cast<int64_t>(said.begin - cuda::ToDevice(memory.data())), said.id);
  if (said.pool != nullptr) return "mapped memory is said to be of a pool";
  if (said.is_legacy != 0) return "mapped memory can be exported by CUDA IPC";
  if (said.is_mapped != 1) return "mapped memory is not said to be";
  return has_file == is_shareable ? "" : "whether descriptors can be had is told wrong";
}

std::string CheckHandles(const cuda::Driver& driver, MappedMemory* memory) {
  const size_t unit = memory->piece_bytes();
  cuda::DevicePointer begin = 0;
  size_t bytes = 0;
  driver->MemGetAddressRange(&begin, &bytes, cuda::ToDevice(memory->data()) + unit + 5);
  if (begin != cuda::ToDevice(memory->data()) + unit || bytes != unit) return "cuMemGetAddressRange gives no mapping";
  const auto handle_at = [&](size_t offset) {
    cuda::AllocationHandle handle = 0;
    return driver->MemRetainAllocationHandle(&handle, memory->data() + offset) == cuda::Result::kSuccess ? handle : 0;
  };
  const cuda::AllocationHandle held = handle_at(unit);
  const cuda::AllocationHandle again = handle_at(2 * unit - 1);
  const cuda::AllocationHandle other = handle_at(0);
  if (held == 0 || held != again) return "a mapping has not one handle";
  if (held == other) return "two mappings have one handle";
  driver->MemRelease(again);
  driver->MemRelease(other);
  const uint64_t id = SaidOf(driver, memory->data() + unit).id;
  if (const Status replaced = memory->Replace(1); !replaced.ok()) return replaced.ToString();
  const cuda::AllocationHandle fresh = handle_at(unit);
  std::printf("virtual memory: the buffer ID of other memory at an address is %s\n",
              SaidOf(driver, memory->data() + unit).id == id ? "the same" : "another");
  driver->MemRelease(held);
  driver->MemRelease(fresh);
  return fresh != 0 && fresh != held ? "" : "other memory at an address has the handle of the old, which is held";
}

// Maps a piece a second time, by its descriptor.
std::string CheckImport(RealDevice* device, const CudaDevice& gpu, const MappedMemory& memory) {
  const cuda::Driver& driver = device->driver();
  CudaPieces pieces;
  std::shared_ptr<const CudaPieces::Run> run;
  FileLetter letter;
  if (const Status found = pieces.Find(gpu, memory.data(), 1, &run); !found.ok()) return found.ToString();
  if (const Status exported = run->Export(&letter); !exported.ok()) return exported.ToString();
  const cuda::ScopedContext scope(driver, device->context());
  cuda::AllocationHandle handle = 0;
  void* const file = cuda::FromDevice<void>(static_cast<cuda::DevicePointer>(letter.files[0]));
  const cuda::Result imported = driver->MemImportFromShareableHandle(&handle, file, cuda::ShareableHandle::kFile);
  letter = FileLetter();  // Closes it.
  if (imported != cuda::Result::kSuccess) return Text(driver.ToStatus(imported, "cuMemImportFromShareableHandle"));
  VirtualRange range(gpu);
  const size_t unit = memory.piece_bytes();
  Status status = range.Reserve(2 * unit);
  if (status.ok() && range.Add(handle, 2 * unit).ok()) return "memory was mapped beyond its end";
  if (status.ok()) status = range.Add(handle, unit);
  driver->MemRelease(handle);
  if (status.ok()) status = range.Open();
  if (!status.ok()) return status.ToString();
  const uint64_t written = 0x1234567;
  uint64_t found = 0;
  device->Write(memory.data(), &written, sizeof written);
  device->Read(&found, range.begin(), sizeof found);
  return found == written ? "" : "memory that is mapped twice is not the same";
}

bool ReadLine(int file, std::string* line) {
  pollfd wait{file, POLLIN, 0};
  char each = 0;
  while (poll(&wait, 1, kMostWaitMs) == 1 && read(file, &each, 1) == 1) {
    if (each == '\n') return true;
    *line += each;
  }
  return false;
}

uint64_t WordAt(size_t piece) { return 0x5eed0000 + piece; }

}  // namespace

std::string VirtualMemoryMissing(RealDevice* device) {
  const CudaDevice* gpu = nullptr;
  if (const Status used = device->cuda_domain()->Use(0, &gpu); !used.ok()) return used.ToString();
  if (!device->driver().has_virtual_memory()) return "the driver has no such functions";
  if (!gpu->Has(cuda::DeviceAttribute::kVirtualMemory)) return "the GPU has none";
  return gpu->Has(cuda::DeviceAttribute::kVirtualMemoryFiles) ? "" : "no descriptors can be had of it";
}

std::string CheckVirtualMemory(RealDevice* device) {
  const cuda::Driver& driver = device->driver();
  const CudaDevice* gpu = nullptr;
  if (const Status used = device->cuda_domain()->Use(0, &gpu); !used.ok()) return used.ToString();
  for (const bool is_shareable : {false, true}) {
    std::unique_ptr<MappedMemory> memory;
    if (const Status made = MakePieces(device, is_shareable, &memory); !made.ok()) return made.ToString();
    std::string wrong = CheckWords(driver, *memory, is_shareable);
    if (wrong.empty()) {
      const cuda::ScopedContext scope(driver, device->context());
      wrong = CheckHandles(driver, memory.get());
    }
    if (wrong.empty() && is_shareable) wrong = CheckImport(device, *gpu, *memory);
    if (!wrong.empty()) return wrong;
    const std::byte* const gone = memory->data();
    memory.reset();
    cuda::AllocationHandle handle = 0;
    const cuda::ScopedContext scope(driver, device->context());
    if (driver->MemRetainAllocationHandle(&handle, const_cast<std::byte*>(gone)) == cuda::Result::kSuccess)
      return "an address where nothing is mapped has a handle";
  }
  return "";
}

std::string CheckFilesOfMemory(RealDevice* device, const std::string& driver) {
  std::unique_ptr<MappedMemory> memory;
  if (const Status made = MakePieces(device, true, &memory); !made.ok()) return made.ToString();
  const size_t unit = memory->piece_bytes();
  for (size_t piece = 0; piece < kPieces; ++piece) {
    const uint64_t word = WordAt(piece);
    device->Write(memory->data() + piece * unit, &word, sizeof word);
  }
  int lines[2];
  if (pipe(lines) != 0) return "no pipe";
  FileSender sender;
  if (const Status opened = sender.Open(); !opened.ok()) return opened.ToString();
  std::string arguments[] = {"gpu_probe", driver, "take-files", std::to_string(sender.name())};
  char* const list[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), arguments[3].data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, lines[1], STDOUT_FILENO);
  pid_t child = -1;
  const int spawned = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, list, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(lines[1]);
  std::string line;
  SharedAddress to;
  const bool has_said = spawned == 0 && ReadLine(lines[0], &line) &&
                        std::sscanf(line.c_str(), "%" SCNu64 " %" SCNu64, &to.name, &to.secret) == 2;
  Status sent(Code::kSystem, "the other process did not start: " + line);
  CudaPieces pieces;
  if (has_said) {
    const CudaDevice* gpu = nullptr;
    FileLetter letter;
    std::shared_ptr<const CudaPieces::Run> run;
    sent = device->cuda_domain()->Use(0, &gpu);
    if (sent.ok()) sent = pieces.Find(*gpu, memory->data(), kPieces * unit, &run);
    if (sent.ok()) sent = run->Export(&letter);
    if (sent.ok()) sent = sender.Send(to, letter);
  }
  std::string end;
  static_cast<void>(ReadLine(lines[0], &end));
  close(lines[0]);
  int status = 0;
  if (spawned == 0) waitpid(child, &status, 0);
  if (!sent.ok()) return sent.ToString();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return "the other process: " + end;
  for (size_t piece = 0; piece < kPieces; ++piece) {
    uint64_t found = 0;
    device->Read(&found, memory->data() + piece * unit, sizeof found);
    if (found != ~WordAt(piece)) return "what the other process wrote is not seen";
  }
  return "";
}

int TakeFiles(const std::string& driver_file, uint64_t from) {
  const auto fail = [](const std::string& why) {
    std::printf("%s\n", why.c_str());
    return 1;
  };
  std::unique_ptr<RealDevice> device;
  if (const Status opened = RealDevice::Open(driver_file, &device); !opened.ok()) return fail(opened.ToString());
  const CudaDevice* gpu = nullptr;
  if (const Status used = device->cuda_domain()->Use(0, &gpu); !used.ok()) return fail(used.ToString());
  FilePost post;
  if (const Status opened = post.Await(from); !opened.ok()) return fail(opened.ToString());
  std::printf("%" PRIu64 " %" PRIu64 "\n", post.address().name, post.address().secret);
  std::fflush(stdout);
  FileLetter letter;
  for (int waited = 0; !post.Take(from, &letter); ++waited) {
    if (waited == kMostWaitMs) return fail("no letter came");
    poll(nullptr, 0, 1);
  }
  CudaMappings mappings;
  SharedPlace place;
  place.process = letter.process;
  place.files = letter.files.size();
  for (const FilePiece& piece : letter.pieces) place.bytes += piece.bytes;
  std::byte* begin = nullptr;
  if (const Status held = mappings.Hold(*gpu, place, &letter, &begin); !held.ok()) return fail(held.ToString());
  size_t offset = 0;
  for (size_t piece = 0; piece < letter.pieces.size(); offset += letter.pieces[piece++].bytes) {
    uint64_t word = 0;
    device->Read(&word, begin + offset, sizeof word);
    if (word != WordAt(piece)) return fail("the memory has not what its owner wrote");
    word = ~word;
    device->Write(begin + offset, &word, sizeof word);
  }
  return 0;
}

}  // namespace annulus
