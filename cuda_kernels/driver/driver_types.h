// What Annulus takes from CUDA's driver, declared by ourselves: types, numbers and the table of functions. So the
// library is built without NVIDIA's headers. A test compares all of it with them where they exist.
//
// Threads: the functions may be called from any thread; most act on the context that is current in the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace annulus::cuda {

enum class Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,  // The process ends.
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kAlreadyMapped = 208,  // What CUDA IPC would open lies at the owner's addresses of something that is still open.
  kPeerAccessUnsupported = 217,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAccessAlreadyEnabled = 704,
  kContextIsDestroyed = 709,  // Or a primary one that is not there yet, or no more.
  kHostMemoryAlreadyRegistered = 712,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kStreamCaptureUnjoined = 904,
  kStreamCaptureImplicit = 906,
  kUnknown = 999,
};

enum class DeviceAttribute : int {
  kMultiprocessors = 16,
  kPciBus = 33,
  kPciDevice = 34,
  kPciDomain = 50,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kCanUseHostPointerForRegisteredMemory = 91,
  kVirtualMemory = 102,       // Whether the virtual memory API works on it,
  kVirtualMemoryFiles = 103,  // and gives descriptors,
  kVirtualMemoryRdma = 110,   // and memory that network cards may reach.
  kRdmaFlushOptions = 117,    // Bits; kRdmaFlushByHost.
  kRdmaWritesOrdering = 118,  // An RdmaScope: who sees what network cards have written without a flush.
  kCanUse64BitWords = 122,    // StreamWaitValue64.
  kDmaBufSupported = 124,
};

enum class PointerAttribute : int {
  kContext = 1,
  kMemoryType = 2,
  kBufferId = 7,  // No two allocations of a process have the same.
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kIsLegacyIpcCapable = 10,  // Whether IpcGetMemHandle takes it.
  kRangeStart = 11,          // Of mapped memory: that of the reserved range.
  kRangeSize = 12,
  kIsMapped = 13,
  kShareableHandles = 14,  // Bits, one for each ShareableHandle that MemExportToShareableHandle gives of it.
  kPool = 17,              // The pool of which it is; null: none.
};

enum class MemoryType : unsigned { kNone = 0, kHost = 1, kDevice = 2, kUnified = 4 };

// Which calls a thread may make while some thread captures a graph.
enum class CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

// Whether a stream's calls go into a graph instead of being done.
enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

constexpr int kRdmaFlushByHost = 1;
enum class FlushTarget : int { kCurrentContext = 0 };
enum class RdmaScope : int { kNone = 0, kOwner = 100 };  // Nobody; the GPU whose memory it is, which more GPUs exceed.

// What MemGetHandleForAddressRange gives; for kDmaBuf an int, a descriptor.
enum class RangeHandle : int { kDmaBuf = 1 };

// What MemExportToShareableHandle gives; for kFile an int, a descriptor.
enum class ShareableHandle : int { kNone = 0, kFile = 1 };
enum class Granularity : int { kMinimum = 0 };
enum class AllocationKind : int { kPinned = 1 };
enum class LocationKind : int { kDevice = 1 };
enum class AccessFlags : int { kReadWrite = 3 };

enum class JitOption : int {};
enum class LibraryOption : int {};

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kHostAllocPortable = 1;
constexpr unsigned kHostAllocDeviceMap = 2;
constexpr unsigned kHostRegisterPortable = 1;
constexpr unsigned kHostRegisterDeviceMap = 2;
// The default: what the stream did before is visible to the whole system before the word is.
constexpr unsigned kWriteValueDefault = 0;
// Until the word, as a number that wraps around, has reached the value.
constexpr unsigned kWaitValueReached = 0;
// Until the word has any of the value's bits.
constexpr unsigned kWaitValueAnd = 2;
constexpr unsigned kEventWithoutTime = 2;
// The only flag of a user object, and that which gives a graph the caller's references.
constexpr unsigned kUserObjectWithoutSync = 1;
constexpr unsigned kMoveUserObject = 1;
constexpr unsigned kIpcLazyPeerAccess = 1;

struct Uuid {
  unsigned char bytes[16];
};
// Handle of an allocation, for other processes of the host.
struct IpcMemHandle {
  unsigned char bytes[64];
};

using Device = int;
using DevicePointer = unsigned long long;
using Context = struct ContextHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Library = struct LibraryHandle*;
using Kernel = struct KernelHandle*;
using Function = struct FunctionHandle*;
using Graph = struct GraphHandle*;
using GraphNode = struct GraphNodeHandle*;
using GraphExec = struct GraphExecHandle*;
using UserObject = struct UserObjectHandle*;  // Something of the program's that goes with the last graph that has it.
using HostFunction = void (*)(void* data);

// Handles of the default streams of the current context: the legacy one, which NULL means too, and the calling
// thread's.
inline Stream LegacyStream() { return reinterpret_cast<Stream>(static_cast<intptr_t>(1)); }
inline Stream ThreadStream() { return reinterpret_cast<Stream>(static_cast<intptr_t>(2)); }

using AllocationHandle = unsigned long long;  // Of physical memory; counted by MemRelease.
struct MemoryLocation {
  LocationKind kind = LocationKind::kDevice;
  int number = 0;
};
// CUmemAllocationProp.
struct AllocationProperties {
  AllocationKind kind = AllocationKind::kPinned;
  ShareableHandle handles = ShareableHandle::kNone;
  MemoryLocation location;
  void* windows = nullptr;
  unsigned char compression = 0;
  unsigned char rdma = 0;  // 1: network cards may reach it.
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
// CUmemAccessDesc.
struct AccessRight {
  MemoryLocation location;
  AccessFlags flags = AccessFlags::kReadWrite;
};

// What to tell of two devices: CUdevice_P2PAttribute.
enum class PeerAttribute : int {
  kAccess = 2,         // Whether the first one reaches the other's memory,
  kNativeAtomics = 3,  // and its atomic operations do.
};

// CUDA_MEMCPY2D.
struct RowsCopy {
  size_t from_x = 0;
  size_t from_y = 0;
  MemoryType from_type = MemoryType::kUnified;
  const void* from_host = nullptr;
  DevicePointer from = 0;
  void* from_array = nullptr;
  size_t from_pitch = 0;
  size_t to_x = 0;
  size_t to_y = 0;
  MemoryType to_type = MemoryType::kUnified;
  void* to_host = nullptr;
  DevicePointer to = 0;
  void* to_array = nullptr;
  size_t to_pitch = 0;
  size_t bytes = 0;  // Size of a row.
  size_t rows = 0;
};

struct DriverFunctions {
#define ANNULUS_DRIVER_FUNCTION(name, symbol, version, parameters) Result(*name) parameters = nullptr;
#include "cuda_kernels/driver/driver_functions.inc"
#include "cuda_kernels/driver/driver_optional.inc"
#undef ANNULUS_DRIVER_FUNCTION
};

inline DevicePointer ToDevice(const void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }
template <class Type = std::byte>
Type* FromDevice(DevicePointer pointer) {
  return reinterpret_cast<Type*>(pointer);
}

}  // namespace annulus::cuda
