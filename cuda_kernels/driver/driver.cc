// Opens the driver and fills the table of its functions.
#include "cuda_kernels/driver/driver.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <iterator>
#include <type_traits>
#include <utility>

namespace annulus::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

using FindFunction = Result (*)(const char* name, void** function, int version, uint64_t flags, int* outcome);

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

Status Driver::Find(const std::string& file, std::unique_ptr<Driver>* driver) {
  std::unique_ptr<Driver> found;
  ANNULUS_RETURN_IF_ERROR(FindAny(file, &found));
  if (!found->unusable().empty()) return {Code::kUnsupported, found->unusable()};
  *driver = std::move(found);
  return Status();
}

Status Driver::FindAny(const std::string& file, std::unique_ptr<Driver>* driver) {
  void* const handle = file.empty() ? dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD) : dlopen(file.c_str(), RTLD_NOW);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return {Code::kUnsupported, file.empty() || why == nullptr
                                    ? "no CUDA driver: the program has not loaded " + std::string(kLibrary)
                                    : "no CUDA driver: " + std::string(why)};
  }
  std::unique_ptr<Driver> found(new Driver(handle));
  const Status status = found->FindFunctions();
  if (!status.ok()) {
    found->unusable_ = status.message();
    found->FindOldFunctions();
    const DriverFunctions& has = found->functions_;
    if (has.PointerGetAttributes == nullptr || has.GetErrorName == nullptr || has.GetErrorString == nullptr)
      return status;
  }
  *driver = std::move(found);
  return Status();
}

void Driver::FindOldFunctions() {
  const auto find = [this](const char* name, auto* function) {
    if (*function == nullptr)
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle_, name));
  };
  find("cuPointerGetAttributes", &functions_.PointerGetAttributes);
  find("cuGetErrorName", &functions_.GetErrorName);
  find("cuGetErrorString", &functions_.GetErrorString);
  find("cuDriverGetVersion", &functions_.DriverGetVersion);
  if (functions_.DriverGetVersion != nullptr) functions_.DriverGetVersion(&version_);
}

Driver::~Driver() { dlclose(handle_); }

Status Driver::FindFunctions() {
  // Since CUDA 12.0. It gives each function in the form of the version that is asked for, whatever its suffix.
  const auto find = reinterpret_cast<FindFunction>(dlsym(handle_, "cuGetProcAddress_v2"));
  if (find == nullptr) return {Code::kUnsupported, "the CUDA driver is too old: 12.4 or newer is needed"};
  const auto get = [&](const char* name, int version, void** function) {
    int outcome = 0;
    const Result result = find(name, function, version, 0, &outcome);
    return result == Result::kSuccess && *function != nullptr;
  };
  const char* missing = nullptr;
#define ANNULUS_DRIVER_FUNCTION(name, symbol, version, parameters) \
  if (!get("cu" #name, version, reinterpret_cast<void**>(&functions_.name))) missing = "cu" #name;
#include "cuda_kernels/driver/driver_functions.inc"
#undef ANNULUS_DRIVER_FUNCTION
#define ANNULUS_DRIVER_FUNCTION(name, symbol, version, parameters) \
  (void)get("cu" #name, version, reinterpret_cast<void**>(&functions_.name));
#include "cuda_kernels/driver/driver_optional.inc"
#undef ANNULUS_DRIVER_FUNCTION
  if (functions_.DriverGetVersion != nullptr) functions_.DriverGetVersion(&version_);
  if (missing == nullptr) return Status();
  return {Code::kUnsupported, "the CUDA driver (" + VersionText(version_) + ") has no " + missing +
                                  ": it is too old, 12.4 or newer is needed"};
}

bool Driver::has_virtual_memory() const {
  const DriverFunctions& f = functions_;
  const bool has_memory = f.MemCreate != nullptr && f.MemRelease != nullptr && f.MemGetAddressRange != nullptr &&
                          f.MemGetAllocationGranularity != nullptr;
  const bool has_handles = f.MemRetainAllocationHandle != nullptr && f.MemExportToShareableHandle != nullptr &&
                           f.MemImportFromShareableHandle != nullptr;
  const bool has_addresses = f.MemAddressReserve != nullptr && f.MemAddressFree != nullptr && f.MemMap != nullptr &&
                             f.MemUnmap != nullptr && f.MemSetAccess != nullptr;
  return has_memory && has_handles && has_addresses;
}

Status Driver::PlaceOf(const void* pointer, PointerPlace* place) const {
  *place = PointerPlace();
  PointerPlace found;
  unsigned type = 0;
  unsigned is_managed = 0;
  PointerAttribute attributes[] = {PointerAttribute::kMemoryType,    PointerAttribute::kIsManaged,
                                   PointerAttribute::kDeviceOrdinal, PointerAttribute::kContext,
                                   PointerAttribute::kRangeStart,    PointerAttribute::kRangeSize};
  void* values[] = {&type, &is_managed, &found.device, &found.context, &found.begin, &found.bytes};
  // For memory that it does not know the driver succeeds, and gives zeros.
  const Result result = functions_.PointerGetAttributes(std::size(attributes), attributes, values, ToDevice(pointer));
  // Nobody has called cuInit, so nobody has a device pointer.
  if (result == Result::kNotInitialized) return Status();
  ANNULUS_RETURN_IF_ERROR(ToStatus(result, "cuPointerGetAttributes"));
  *place = found;
  place->type = static_cast<MemoryType>(type);
  // The CPU may touch managed memory, wherever its pages are.
  if (is_managed != 0) place->type = MemoryType::kHost;
  if (place->type != MemoryType::kDevice) place->device = -1;
  return Status();
}

std::string Driver::PciAddress(Device device) const {
  int domain = 0;
  int bus = 0;
  int number = 0;
  for (const auto& [value, attribute] :
       {std::pair{&domain, DeviceAttribute::kPciDomain}, std::pair{&bus, DeviceAttribute::kPciBus},
        std::pair{&number, DeviceAttribute::kPciDevice}}) {
    if (functions_.DeviceGetAttribute(value, attribute, device) != Result::kSuccess) return "";
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0", domain, bus, number);
  return text.data();
}

// The driver has copies of less than 32 KiB to a device done where kernels run, unless they have several rows. Where
// processes share a device, that waits until it is this one's turn: 140 us in place of 7 on an H200 with driver 580
// (docs/benchmarks/2026-11-26-h200.md).
Result Driver::Copy(void* to, const void* from, size_t bytes, bool to_device, Stream stream) const {
  constexpr size_t kLeastAsOne = 32 * 1024;
  if (!to_device || bytes >= kLeastAsOne || bytes % 2 != 0 || bytes == 0)
    return functions_.MemcpyAsync(ToDevice(to), ToDevice(from), bytes, stream);
  RowsCopy rows;
  rows.from = ToDevice(from);
  rows.to = ToDevice(to);
  rows.rows = 2;
  rows.bytes = rows.from_pitch = rows.to_pitch = bytes / 2;
  return functions_.Memcpy2DAsync(&rows, stream);
}

Status Driver::ToStatus(Result result, const char* function) const {
  if (result == Result::kSuccess) return Status();
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.GetErrorName(result, &name);
  functions_.GetErrorString(result, &text);
  return {result == Result::kOutOfMemory ? Code::kOutOfMemory : Code::kSystem,
          std::string(function) + ": " + (text != nullptr ? text : "unknown error") + " (" +
              (name != nullptr ? name : std::to_string(static_cast<int>(result))) + ")"};
}

}  // namespace annulus::cuda
