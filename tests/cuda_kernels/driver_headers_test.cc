// Our declarations of CUDA's driver against the vendor's header, where there is one: types by their kind and size,
// constants by their value.
#include <gtest/gtest.h>

#include "cuda_kernels/driver/driver_types.h"
#include "tests/cuda/graph_functions.h"

#ifdef ANNULUS_HAS_CUDA_H
#include <cuda.h>

#include <cstddef>
#include <type_traits>

namespace annulus::cuda {
namespace {

// Whether two types are passed in the same way: both pointers, or both plain values of one size.
template <class A, class B>
constexpr bool kSameKind = std::is_pointer_v<A> == std::is_pointer_v<B> &&
                           sizeof(A) == sizeof(B) && std::is_floating_point_v<A> == std::is_floating_point_v<B>;

template <class Ours, class Theirs>
struct SameShape : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SameShape<R (*)(A...), S (*)(B...)>
    : std::bool_constant<kSameKind<R, S> && (... && kSameKind<A, B>)> {
};

// Each by the symbol that the table means: by its plain name the header means the newest form, which may be a later
// one.
#define ANNULUS_DRIVER_FUNCTION(name, symbol, version, parameters) \
  static_assert(SameShape<decltype(DriverFunctions::name), decltype(&symbol)>::value, #symbol);
#include "cuda_kernels/driver/driver_functions.inc"
#include "cuda_kernels/driver/driver_optional.inc"
#undef ANNULUS_DRIVER_FUNCTION
#define ANNULUS_DRIVER_FUNCTION(name, symbol, version, parameters) \
  static_assert(SameShape<decltype(GraphProgram::name), decltype(&symbol)>::value, #symbol);
#include "tests/cuda/graph_functions.inc"
#undef ANNULUS_DRIVER_FUNCTION

template <class Ours, class Theirs>
constexpr bool Equal(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(Equal(Result::kSuccess, CUDA_SUCCESS));
static_assert(Equal(Result::kInvalidValue, CUDA_ERROR_INVALID_VALUE));
static_assert(Equal(Result::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY));
static_assert(Equal(Result::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(Equal(Result::kDeinitialized, CUDA_ERROR_DEINITIALIZED));
static_assert(Equal(Result::kNoDevice, CUDA_ERROR_NO_DEVICE));
static_assert(Equal(Result::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE));
static_assert(Equal(Result::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT));
static_assert(Equal(Result::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE));
static_assert(Equal(Result::kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED));
static_assert(Equal(Result::kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
static_assert(Equal(Result::kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED));
static_assert(Equal(Result::kNotFound, CUDA_ERROR_NOT_FOUND));
static_assert(Equal(Result::kNotReady, CUDA_ERROR_NOT_READY));
static_assert(Equal(Result::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS));
static_assert(Equal(Result::kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
static_assert(Equal(Result::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED));
static_assert(Equal(Result::kNotSupported, CUDA_ERROR_NOT_SUPPORTED));
static_assert(Equal(Result::kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
static_assert(Equal(Result::kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
static_assert(Equal(Result::kNotPermitted, CUDA_ERROR_NOT_PERMITTED));
static_assert(Equal(Result::kStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
static_assert(Equal(Result::kStreamCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
static_assert(Equal(DeviceAttribute::kCanUse64BitWords, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
static_assert(Equal(kWaitValueAnd, CU_STREAM_WAIT_VALUE_AND));
static_assert(Equal(kUserObjectWithoutSync, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
static_assert(Equal(kMoveUserObject, CU_GRAPH_USER_OBJECT_MOVE));
static_assert(Equal(CaptureMode::kThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
static_assert(Equal(CaptureMode::kGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL));
static_assert(Equal(CaptureMode::kRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED));
static_assert(Equal(Result::kUnknown, CUDA_ERROR_UNKNOWN));
static_assert(Equal(DeviceAttribute::kMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
static_assert(Equal(DeviceAttribute::kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
static_assert(Equal(DeviceAttribute::kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
static_assert(Equal(DeviceAttribute::kCanUseHostPointerForRegisteredMemory,
                    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM));
static_assert(Equal(PeerAttribute::kAccess, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED));
static_assert(Equal(PeerAttribute::kNativeAtomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED));
static_assert(Equal(DeviceAttribute::kPciBus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID));
static_assert(Equal(DeviceAttribute::kPciDevice, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
static_assert(Equal(DeviceAttribute::kPciDomain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID));
static_assert(Equal(DeviceAttribute::kDmaBufSupported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED));
static_assert(Equal(DeviceAttribute::kRdmaFlushOptions, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS));
static_assert(Equal(DeviceAttribute::kRdmaWritesOrdering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING));
static_assert(Equal(kRdmaFlushByHost, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST));
static_assert(Equal(FlushTarget::kCurrentContext, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX));
static_assert(Equal(RdmaScope::kOwner, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
static_assert(Equal(RdmaScope::kOwner, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER));
static_assert(Equal(RangeHandle::kDmaBuf, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD));
static_assert(Equal(PointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE));
static_assert(Equal(PointerAttribute::kBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID));
static_assert(Equal(PointerAttribute::kIsLegacyIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE));
static_assert(Equal(kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
static_assert(sizeof(IpcMemHandle) == sizeof(CUipcMemHandle) && sizeof(Uuid) == sizeof(CUuuid));
static_assert(Equal(PointerAttribute::kIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED));
static_assert(Equal(PointerAttribute::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
static_assert(Equal(PointerAttribute::kContext, CU_POINTER_ATTRIBUTE_CONTEXT));
static_assert(Equal(PointerAttribute::kRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR));
static_assert(Equal(PointerAttribute::kRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE));
static_assert(Equal(MemoryType::kHost, CU_MEMORYTYPE_HOST));
static_assert(Equal(MemoryType::kUnified, CU_MEMORYTYPE_UNIFIED));
static_assert(Equal(DeviceAttribute::kVirtualMemory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
static_assert(Equal(DeviceAttribute::kVirtualMemoryFiles,
                    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
static_assert(Equal(DeviceAttribute::kVirtualMemoryRdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
static_assert(Equal(PointerAttribute::kPool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE));
static_assert(Equal(PointerAttribute::kIsMapped, CU_POINTER_ATTRIBUTE_MAPPED));
static_assert(Equal(PointerAttribute::kShareableHandles, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES));
static_assert(Equal(ShareableHandle::kFile, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
static_assert(Equal(Granularity::kMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
static_assert(Equal(AllocationKind::kPinned, CU_MEM_ALLOCATION_TYPE_PINNED));
static_assert(Equal(LocationKind::kDevice, CU_MEM_LOCATION_TYPE_DEVICE));
static_assert(Equal(AccessFlags::kReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProperties, handles) == offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProperties, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProperties, rdma) == offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(sizeof(AccessRight) == sizeof(CUmemAccessDesc) && sizeof(MemoryLocation) == sizeof(CUmemLocation));
static_assert(offsetof(AccessRight, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(AllocationHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(RowsCopy) == sizeof(CUDA_MEMCPY2D));
static_assert(offsetof(RowsCopy, from) == offsetof(CUDA_MEMCPY2D, srcDevice));
static_assert(offsetof(RowsCopy, from_pitch) == offsetof(CUDA_MEMCPY2D, srcPitch));
static_assert(offsetof(RowsCopy, to_type) == offsetof(CUDA_MEMCPY2D, dstMemoryType));
static_assert(offsetof(RowsCopy, to) == offsetof(CUDA_MEMCPY2D, dstDevice));
static_assert(offsetof(RowsCopy, to_pitch) == offsetof(CUDA_MEMCPY2D, dstPitch));
static_assert(offsetof(RowsCopy, rows) == offsetof(CUDA_MEMCPY2D, Height));
static_assert(Equal(MemoryType::kDevice, CU_MEMORYTYPE_DEVICE));
static_assert(Equal(kStreamNonBlocking, CU_STREAM_NON_BLOCKING));
static_assert(Equal(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE));
static_assert(Equal(kHostAllocDeviceMap, CU_MEMHOSTALLOC_DEVICEMAP));
static_assert(Equal(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE));
static_assert(Equal(kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP));
static_assert(Equal(kWriteValueDefault, CU_STREAM_WRITE_VALUE_DEFAULT));
static_assert(Equal(kWaitValueReached, CU_STREAM_WAIT_VALUE_GEQ));
static_assert(Equal(kEventWithoutTime, CU_EVENT_DISABLE_TIMING));
static_assert(Equal(CaptureStatus::kNone, CU_STREAM_CAPTURE_STATUS_NONE));
static_assert(Equal(CaptureStatus::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE));
static_assert(Equal(CaptureStatus::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED));
static_assert(sizeof(Device) == sizeof(CUdevice) && sizeof(DevicePointer) == sizeof(CUdeviceptr));
static_assert(SameShape<Result (*)(const char*, void**, int, uint64_t, int*), decltype(&cuGetProcAddress)>::value);

// The comparison itself can fail.
static_assert(!SameShape<int (*)(int), int (*)(long)>::value);
static_assert(!SameShape<int (*)(void*), int (*)(uint64_t)>::value);
static_assert(!SameShape<int (*)(int), int (*)(int, int)>::value);

}  // namespace
}  // namespace annulus::cuda
#endif

TEST(DriverHeadersTest, OurDeclarationsAreTheVendors) {
#ifndef ANNULUS_HAS_CUDA_H
  GTEST_SKIP() << "this machine has no cuda.h";
#endif
}
