#include "tests/gpu/probe/probe_checks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/status.h"
#include "tests/cuda/random_operations.h"

namespace annulus {
namespace {

constexpr size_t kPageBytes = 4096;

std::string Place(const RealDevice& device, const void* pointer, cuda::MemoryType expected, const char* what) {
  cuda::PointerPlace place;
  const Status status = device.driver().PlaceOf(pointer, &place);
  if (!status.ok()) return std::string(what) + ": " + status.ToString();
  if (place.type == expected) return "";
  return std::string(what) + " has memory type " + std::to_string(static_cast<int>(place.type)) + ", expected " +
         std::to_string(static_cast<int>(expected));
}

std::string Pin(const RealDevice& device, void* memory, cuda::Result expected, const char* what) {
  const cuda::Result result =
      device.driver()->MemHostRegister(memory, kPageBytes, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
  if (result == expected) return "";
  return std::string("pinning ") + what + " gives " + std::to_string(static_cast<int>(result)) + ", expected " +
         std::to_string(static_cast<int>(expected));
}

SliceOp OneOrTwoSources(std::byte* to, const std::byte* a, const std::byte* b, size_t bytes) {
  SliceOp op;
  op.dst[0] = to;
  op.inline_src[0] = a;
  op.inline_src[1] = b;
  op.num_sources = b != nullptr ? 2 : 1;
  op.count = bytes;
  op.type = DataType::kUint8;
  return op;
}

// All pairs of two bytes.
void FillPairs(Bytes* a, Bytes* b) {
  a->resize(65536);
  b->resize(65536);
  for (size_t i = 0; i < a->size(); ++i) {
    (*a)[i] = static_cast<std::byte>(i >> 8);
    (*b)[i] = static_cast<std::byte>(i & 0xff);
  }
}

std::string CheckDoneWordsOf(size_t bytes, RealDevice* device, DomainQueue* queue, int rounds) {
  DevicePlace slot(DevicePlace::Kind::kSlot, bytes, device);
  DevicePlace left(DevicePlace::Kind::kDevice, bytes, device);
  DevicePlace right(DevicePlace::Kind::kDevice, bytes, device);
  right.Write(Bytes(bytes));
  for (int round = 0; round < rounds; ++round) {
    const Bytes expected(bytes, static_cast<std::byte>(round % 251 + 1));
    left.Write(expected);
    // A copy and a kernel in turn; every byte must be there as soon as the word is.
    const SliceOp op = OneOrTwoSources(slot.data(), left.data(), round % 2 == 0 ? nullptr : right.data(), bytes);
    std::memset(slot.data(), 0, bytes);
    const Status status = RunToStatus(queue, op);
    if (!status.ok()) return status.ToString();
    if (std::memcmp(slot.data(), expected.data(), bytes) != 0) return "a word came before its results";
  }
  return "";
}

// Submits all operations to the two queues in turn, and only then polls.
Status RunAll(const std::vector<SliceOp>& ops, const std::unique_ptr<DomainQueue> (&queues)[2]) {
  std::vector<DomainQueue::Ticket> tickets(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) ANNULUS_RETURN_IF_ERROR(queues[i % 2]->Submit(ops[i], &tickets[i]));
  for (size_t i = 0; i < ops.size(); ++i) {
    bool done = false;
    while (!done) ANNULUS_RETURN_IF_ERROR(queues[i % 2]->Poll(tickets[i], &done));
  }
  return Status();
}

}  // namespace

std::string CheckPointers(RealDevice* device) {
  constexpr size_t kBytes = 1 << 20;
  std::byte* const memory = device->Allocate(kBytes);
  const int on_stack = 0;
  std::string wrong;
  // Without a current context, as the thread that drives a communicator may have none.
  wrong += Place(*device, memory, cuda::MemoryType::kDevice, "the begin of device memory");
  wrong += Place(*device, memory + kBytes - 1, cuda::MemoryType::kDevice, "the end of device memory");
  wrong += Place(*device, &on_stack, cuda::MemoryType::kNone, "the stack");
  wrong += Place(*device, nullptr, cuda::MemoryType::kNone, "null");
  if (!device->domain()->Owns(memory)) wrong += "the domain does not own device memory";
  if (device->domain()->Owns(&on_stack)) wrong += "the domain owns the stack";
  cuda::PointerPlace place;
  const bool is_told = device->driver().PlaceOf(memory + 4097, &place).ok();
  if (!is_told || place.begin != cuda::ToDevice(memory) || place.bytes != kBytes)
    wrong += "the driver tells another begin or size than the allocation's";
  if (place.context != device->context()) wrong += "the memory is of another context";
  if (device->domain()->Prepare(memory + 1, kBytes, ReduceOn::kAuto, nullptr).code() != Code::kInvalidArgument)
    wrong += "a buffer that ends behind its allocation is taken";
  if (!device->domain()->Prepare(memory, kBytes, ReduceOn::kAuto, nullptr).ok()) wrong += "device memory is not taken";
  device->Free(memory);
  wrong += Place(*device, memory, cuda::MemoryType::kNone, "freed memory");
  if (device->domain()->Prepare(memory, kBytes, ReduceOn::kAuto, nullptr).ok()) wrong += "freed memory is taken";
  return wrong;
}

std::string CheckDevice(RealDevice* device) {
  const CudaDevice* used = nullptr;
  const Status status = device->cuda_domain()->Use(0, &used);
  return status.ok() ? "" : status.ToString();
}

std::string CheckKernels(RealDevice* device) {
  const CudaDevice* used = nullptr;
  const Status status = device->cuda_domain()->Use(0, &used);
  return status.ok() ? used->kernels_missing() : status.ToString();
}

std::string CheckPins(RealDevice* device) {
  const int file = memfd_create("annulus-probe", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, kPageBytes) != 0) return "no memory file";
  void* const shared = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  void* const own = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  close(file);
  if (shared == MAP_FAILED || own == MAP_FAILED) return "no memory";
  const cuda::ScopedContext scope(device->driver(), device->context());
  std::string wrong;
  for (void* const memory : {own, shared}) {
    const char* const what = memory == own ? "private memory" : "a shared memory file";
    wrong += Pin(*device, memory, cuda::Result::kSuccess, what);
    wrong += Pin(*device, memory, cuda::Result::kHostMemoryAlreadyRegistered, "pinned pages again");
    wrong += Place(*device, memory, cuda::MemoryType::kHost, what);
    device->driver()->MemHostUnregister(memory);
    wrong += Place(*device, memory, cuda::MemoryType::kNone, "memory that is pinned no longer");
    munmap(memory, kPageBytes);
  }
  return wrong;
}

std::string CheckDoneWords(RealDevice* device, DomainQueue* queue, int rounds) {
  const std::string wrong = CheckDoneWordsOf(64 * 1024, device, queue, rounds);
  return wrong.empty() ? CheckDoneWordsOf(4 << 20, device, queue, rounds / 20 + 2) : wrong;
}

std::string CheckBatches(RealDevice* device, int rounds) {
  constexpr size_t kBytes = 16 * 1024;
  constexpr size_t kItems = 64;  // 32 for each queue.
  std::unique_ptr<DomainQueue> queues[2];
  for (auto& queue : queues) {
    if (!device->domain()->OpenQueue(ReduceOn::kAuto, &queue).ok()) return "no queue";
  }
  DevicePlace ones(DevicePlace::Kind::kDevice, kBytes, device);
  ones.Write(Bytes(kBytes, std::byte{1}));
  std::vector<std::unique_ptr<DevicePlace>> slots;
  std::vector<std::unique_ptr<DevicePlace>> memories;
  for (size_t i = 0; i < kItems; ++i) {
    slots.push_back(std::make_unique<DevicePlace>(DevicePlace::Kind::kSlot, kBytes, device));
    memories.push_back(std::make_unique<DevicePlace>(DevicePlace::Kind::kDevice, kBytes, device));
  }
  for (int round = 0; round < rounds; ++round) {
    std::vector<SliceOp> loads;
    std::vector<SliceOp> stores;
    for (size_t i = 0; i < kItems; ++i) {
      const auto value = static_cast<int>((static_cast<size_t>(round) + i) % 200);
      std::memset(slots[i]->data(), value, kBytes);
      // Two copies, then two sums.
      const std::byte* const other = i % 4 < 2 ? nullptr : ones.data();
      loads.push_back(OneOrTwoSources(memories[i]->data(), slots[i]->data(), other, kBytes));
      stores.push_back(OneOrTwoSources(slots[i]->data(), memories[i]->data(), ones.data(), kBytes));
    }
    for (const std::vector<SliceOp>* const ops : {&loads, &stores}) {
      const Status status = RunAll(*ops, queues);
      if (!status.ok()) return status.ToString();
    }
    for (size_t i = 0; i < kItems; ++i) {
      const size_t sum = (static_cast<size_t>(round) + i) % 200 + (i % 4 < 2 ? 1 : 2);
      const Bytes expected(kBytes, static_cast<std::byte>(sum));
      if (std::memcmp(slots[i]->data(), expected.data(), kBytes) != 0)
        return "slice " + std::to_string(i) + " of round " + std::to_string(round) + " is wrong";
    }
  }
  return "";
}

std::string CheckBits(RealDevice* device, DomainQueue* queue, int rounds) {
  Bytes a;
  Bytes b;
  FillPairs(&a, &b);
  for (const DataType type : {DataType::kInt8, DataType::kUint8, DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::kAvg); ++op) {
      const std::string wrong = RunPairs(type, static_cast<ReduceOp>(op), op == 4 ? 3 : 0, a, b, device, queue);
      if (!wrong.empty()) return wrong;
    }
  }
  Bytes all(65536 * sizeof(uint16_t));
  for (size_t i = 0; i < 65536; ++i) Put(all.data(), i, static_cast<uint16_t>(i));
  Bytes one(all.size());
  for (const uint16_t value :
       {0x0000, 0x8000, 0x0001, 0x03ff, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x3c00, 0x7f80, 0x3f81}) {
    for (size_t i = 0; i < 65536; ++i) Put(one.data(), i, value);
    for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
      for (int op = 0; op <= static_cast<int>(ReduceOp::kAvg); ++op) {
        const std::string wrong = RunPairs(type, static_cast<ReduceOp>(op), op == 4 ? 3 : 0, all, one, device, queue);
        if (!wrong.empty()) return wrong;
      }
    }
  }
  for (int round = 1; round <= rounds; ++round) {
    const std::string wrong = RunRandomOperation(static_cast<uint64_t>(round), device, queue);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace annulus
