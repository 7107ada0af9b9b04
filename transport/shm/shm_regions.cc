#include "transport/shm/shm_regions.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"
#include "transport/file_message.h"

namespace annulus {

bool ShmOwnRegions::Find(const std::byte* data, size_t bytes, ShmPlace* place) {
  if (registry_ == nullptr) return false;
  if (version_ != registry_->version() || !to_forget_.empty()) Refresh();
  for (Known& known : known_) {
    const bool within =
        data >= known.begin && bytes <= known.bytes && static_cast<size_t>(data - known.begin) <= known.bytes - bytes;
    if (!within) continue;
    if (!known.told) known.told = Tell(known);
    *place = {known.id, static_cast<uint64_t>(data - known.begin)};
    return known.told;
  }
  return false;
}

bool ShmOwnRegions::Tell(const Known& known) {
  const std::shared_ptr<const MemoryRegion> region = known.region.lock();
  if (region == nullptr || at_peer_ == kShmMostRegions || known.bytes > kShmMostRegionBytes) return false;
  // A file that can only be read, so that no mistake of the peer writes to it.
  const int reader = open(("/proc/self/fd/" + std::to_string(region->fd)).c_str(), O_RDONLY | O_CLOEXEC);
  if (reader < 0) return false;
  const bool told = send_({ShmNotice::kShares, known.id, known.bytes}, reader);
  close(reader);
  if (told) ++at_peer_;
  return told;
}

void ShmOwnRegions::Refresh() {
  version_ = registry_->version();  // First, so that later changes are seen next time.
  const auto with_id = [](uint64_t id) { return [id](const Known& known) { return known.id == id; }; };
  std::vector<Known> now;
  for (const std::shared_ptr<const MemoryRegion>& region : registry_->Regions()) {
    const auto before = std::find_if(known_.begin(), known_.end(), with_id(region->id));
    const bool told = before != known_.end() && before->told;
    now.push_back({region, region->id, region->begin, region->bytes, told});
  }
  for (const Known& known : known_) {
    if (known.told && std::none_of(now.begin(), now.end(), with_id(known.id))) to_forget_.push_back(known.id);
  }
  known_ = std::move(now);
  at_peer_ -= std::erase_if(to_forget_, [this](uint64_t id) { return send_({ShmNotice::kForgets, id, 0}, -1); });
}

ShmPeerRegions::~ShmPeerRegions() {
  while (!regions_.empty()) Unmap(&regions_.back());
  for (const int file : {file_, next_file_}) {
    if (file >= 0) close(file);
  }
}

void ShmPeerRegions::Fault(const ShmFault& fault) {
  if (fault_.field == nullptr) fault_ = fault;
}

bool ShmPeerRegions::HasFault(ShmFault* fault) {
  if (fault_.field == nullptr) return false;
  *fault = fault_;
  return true;
}

void ShmPeerRegions::Feed(const char* data, size_t bytes, int fd) {
  if (fd >= 0 && file_ < 0) {
    file_ = fd;
  } else if (fd >= 0 && partial_bytes_ > 0 && next_file_ < 0) {
    next_file_ = fd;
  } else if (fd >= 0) {
    Fault({"memory files without a notice", 2, 1, 0});
    close(fd);
  }
  while (bytes > 0 && fault_.field == nullptr) {
    if (partial_bytes_ == 0 && *data == kShmBellByte) {
      ++data;
      --bytes;
      continue;
    }
    ShmNotice notice{};
    SharedDeviceMemory shared;
    // Only the whole notice tells whether there is more.
    size_t whole = sizeof(notice);
    if (partial_bytes_ >= whole) whole = sizeof(partial_);
    const size_t part = std::min(bytes, whole - partial_bytes_);
    std::memcpy(partial_ + partial_bytes_, data, part);
    partial_bytes_ += part;
    data += part;
    bytes -= part;
    if (partial_bytes_ < whole) return;
    std::memcpy(&notice, partial_, sizeof(notice));
    if (notice.kind == ShmNotice::kSharesDevice && whole < sizeof(partial_)) continue;
    if (whole == sizeof(partial_)) std::memcpy(&shared, partial_ + sizeof(notice), sizeof(shared));
    partial_bytes_ = 0;
    OnNotice(notice, shared);
  }
}

void ShmPeerRegions::OnNotice(const ShmNotice& notice, const SharedDeviceMemory& shared) {
  const bool is_device = notice.kind == ShmNotice::kSharesDevice || notice.kind == ShmNotice::kOpened ||
                         (notice.kind == ShmNotice::kForgets && (notice.region & kShmOnDevice) != 0);
  if (is_device && on_device_ != nullptr) {
    const bool has_shared = notice.kind == ShmNotice::kSharesDevice;
    if (!on_device_(notice, has_shared ? &shared : nullptr))
      Fault({"notice of a device's memory", notice.region, kShmOnDevice, 0});
    return;
  }
  if (notice.kind == ShmNotice::kShares) return Share(notice);
  Region* const region = Find(notice.region);
  if (notice.kind != ShmNotice::kForgets) return Fault({"kind of a notice", notice.kind, ShmNotice::kShares, 0});
  if (region == nullptr) return Fault({"region to forget", notice.region, 0, 0});
  region->forgotten = true;
  if (region->holds == 0) Unmap(region);
}

void ShmPeerRegions::Share(const ShmNotice& notice) {
  if (file_ < 0) return Fault({"memory files with a notice", 0, 1, 0});
  const int fd = std::exchange(file_, std::exchange(next_file_, -1));
  struct stat file;
  void* base = MAP_FAILED;
  int error = 0;
  if (!IsShareableFile(fd) || fstat(fd, &file) != 0) {
    const int seals = fcntl(fd, F_GET_SEALS);
    Fault({"seals of a registered region's file", static_cast<uint64_t>(std::max(seals, 0)), F_SEAL_SHRINK, 0});
  } else if (notice.bytes == 0 || notice.bytes > kShmMostRegionBytes ||
             static_cast<uint64_t>(file.st_size) != notice.bytes) {
    Fault({"bytes of a registered region", notice.bytes, static_cast<uint64_t>(file.st_size), 0});
  } else if (regions_.size() == kShmMostRegions || Find(notice.region) != nullptr) {
    Fault({"registered region", notice.region, kShmMostRegions, 0});
  } else {
    base = mmap(nullptr, notice.bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    error = errno;
    if (base == MAP_FAILED && error != ENOMEM) Fault({"mapping registered memory", notice.bytes, 0, error});
  }
  if (base == MAP_FAILED && error == ENOMEM) {
    regions_.push_back({notice.region, nullptr, notice.bytes, fd, 0, false});
    return;
  }
  close(fd);
  if (base == MAP_FAILED) return;
  // Huge pages, where the file has them, need fewer address translations. A refusal costs speed only.
  (void)madvise(base, notice.bytes, MADV_HUGEPAGE);
  regions_.push_back({notice.region, static_cast<std::byte*>(base), notice.bytes, -1, 0, false});
  mapped_.fetch_add(notice.bytes, std::memory_order_relaxed);
}

ShmPeerRegions::Region* ShmPeerRegions::Find(uint64_t id) {
  for (Region& region : regions_) {
    if (region.id == id) return &region;
  }
  return nullptr;
}

void ShmPeerRegions::Unmap(Region* region) {
  if (region->base != nullptr) {
    munmap(region->base, region->bytes);
    mapped_.fetch_sub(region->bytes, std::memory_order_relaxed);
  } else {
    close(region->file);
  }
  regions_.erase(regions_.begin() + (region - regions_.data()));
}

const std::byte* ShmPeerRegions::Hold(const ShmPlace& place, uint32_t bytes) {
  Region* const region = Find(place.region);
  if (region == nullptr || region->forgotten || place.offset > region->bytes || bytes > region->bytes - place.offset)
    return nullptr;
  const std::byte* data = region->base != nullptr ? region->base + place.offset : Copy(*region, place.offset, bytes);
  if (data != nullptr) ++region->holds;
  return data;
}

const std::byte* ShmPeerRegions::Copy(const Region& region, uint64_t offset, uint32_t bytes) {
  auto copy = std::ranges::find_if(copies_, [&](const Copied& each) { return !each.held && each.bytes >= bytes; });
  if (copy == copies_.end()) {
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
    if (memory == nullptr) {
      Fault({"memory for a copy of registered memory", bytes, 0, ENOMEM});
      return nullptr;
    }
    copy = copies_.insert(copies_.end(), Copied{std::move(memory), bytes});
  }
  for (uint32_t done = 0; done < bytes;) {
    const ssize_t got = pread(region.file, copy->memory.get() + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      Fault({"reading registered memory", bytes, done, got < 0 ? errno : EIO});
      return nullptr;
    }
    done += static_cast<uint32_t>(got);
  }
  copy->held = true;
  return copy->memory.get();
}

void ShmPeerRegions::Release(uint64_t id, const std::byte* data) {
  Region* const region = Find(id);
  ANNULUS_CHECK(region != nullptr && region->holds > 0);
  if (region->base == nullptr) {
    const auto copy = std::ranges::find_if(copies_, [data](const Copied& each) { return each.memory.get() == data; });
    ANNULUS_CHECK(copy != copies_.end() && copy->held);
    copy->held = false;
  }
  if (--region->holds == 0 && region->forgotten) Unmap(region);
}

}  // namespace annulus
