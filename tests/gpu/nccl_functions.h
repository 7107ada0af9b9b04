// What is used of NVIDIA's NCCL, as nccl.h has it since NCCL 2: functions by their names, which return 0 when all is
// well.
//
// Threads: as NCCL's.
#pragma once

#include <cstddef>

namespace annulus {

struct NcclId {
  char text[128];
};

using NcclComm = void*;

struct NcclFunctions {
  int (*GetVersion)(int* version) = nullptr;
  int (*GetUniqueId)(NcclId* id) = nullptr;
  int (*CommInitRank)(NcclComm* comm, int nranks, NcclId id, int rank) = nullptr;
  int (*CommDestroy)(NcclComm comm) = nullptr;
  int (*AllReduce)(const void* in, void* out, size_t count, int type, int op, NcclComm comm, void* stream) = nullptr;
  const char* (*GetErrorString)(int result) = nullptr;
  const char* (*GetLastError)(NcclComm comm) = nullptr;  // Since 2.13; null before.
};

}  // namespace annulus
