#include "frameworks/mpi/elements.h"

#include <string>

#include "frameworks/mpi/error.h"

namespace annulus_mpi {
namespace {

template <typename Integer>
constexpr ElementType IntegerType() {
  constexpr bool kSign = static_cast<Integer>(-1) < static_cast<Integer>(0);
  switch (sizeof(Integer)) {
    case 1:
      return {1, Numbers::kPlain, kSign ? ANNULUS_INT8 : ANNULUS_UINT8};
    case 2:
      return {2, kSign ? Numbers::kSigned : Numbers::kUnsigned, kSign ? ANNULUS_INT32 : ANNULUS_UINT32};
    case 4:
      return {4, Numbers::kPlain, kSign ? ANNULUS_INT32 : ANNULUS_UINT32};
    default:
      return {8, Numbers::kPlain, kSign ? ANNULUS_INT64 : ANNULUS_UINT64};
  }
}

constexpr struct {
  Handle handle;
  ElementType type;
} kTypes[] = {
    {kBYTE, {1, Numbers::kNone, ANNULUS_UINT8}},
    {kC_BOOL, {1, Numbers::kNone, ANNULUS_UINT8}},
    {kCXX_BOOL, {1, Numbers::kNone, ANNULUS_UINT8}},
    {kCHAR, {1, Numbers::kNone, ANNULUS_UINT8}},
    {kSIGNED_CHAR, IntegerType<signed char>()},
    {kUNSIGNED_CHAR, IntegerType<unsigned char>()},
    {kSHORT, IntegerType<short>()},
    {kUNSIGNED_SHORT, IntegerType<unsigned short>()},
    {kINT, IntegerType<int>()},
    {kUNSIGNED, IntegerType<unsigned>()},
    {kLONG, IntegerType<long>()},
    {kUNSIGNED_LONG, IntegerType<unsigned long>()},
    {kLONG_LONG, IntegerType<long long>()},
    {kUNSIGNED_LONG_LONG, IntegerType<unsigned long long>()},
    {kINT8_T, IntegerType<int8_t>()},
    {kUINT8_T, IntegerType<uint8_t>()},
    {kINT16_T, IntegerType<int16_t>()},
    {kUINT16_T, IntegerType<uint16_t>()},
    {kINT32_T, IntegerType<int32_t>()},
    {kUINT32_T, IntegerType<uint32_t>()},
    {kINT64_T, IntegerType<int64_t>()},
    {kUINT64_T, IntegerType<uint64_t>()},
    {kAINT, IntegerType<intptr_t>()},
    {kCOUNT, IntegerType<int64_t>()},
    {kOFFSET, IntegerType<int64_t>()},
    {kFLOAT, {4, Numbers::kPlain, ANNULUS_FLOAT32}},
    {kDOUBLE, {8, Numbers::kPlain, ANNULUS_FLOAT64}},
    {kC_COMPLEX, {8, Numbers::kComplex, ANNULUS_FLOAT32}},
    {kC_FLOAT_COMPLEX, {8, Numbers::kComplex, ANNULUS_FLOAT32}},
    {kCXX_FLOAT_COMPLEX, {8, Numbers::kComplex, ANNULUS_FLOAT32}},
    {kC_DOUBLE_COMPLEX, {16, Numbers::kComplex, ANNULUS_FLOAT64}},
    {kCXX_DOUBLE_COMPLEX, {16, Numbers::kComplex, ANNULUS_FLOAT64}},
};

}  // namespace

ElementType ElementTypeOf(Handle datatype) {
  for (const auto& [handle, type] : kTypes) {
    if (handle == datatype) return type;
  }
  throw Error(kERR_TYPE, "datatype " + std::to_string(datatype) +
                             " is not one that Annulus has: integers, floats, complex numbers and bytes of C");
}

size_t BytesOf(int count, Handle datatype) {
  Require(count >= 0, kERR_COUNT, "the count is " + std::to_string(count) + " (MPI counts in 32 bits)");
  return static_cast<size_t>(count) * ElementTypeOf(datatype).bytes;
}

annulus_op_t OperationOf(Handle op) {
  switch (op) {
    case kSUM:
      return ANNULUS_SUM;
    case kPROD:
      return ANNULUS_PROD;
    case kMIN:
      return ANNULUS_MIN;
    case kMAX:
      return ANNULUS_MAX;
    default:
      throw Error(kERR_OP, "operation " + std::to_string(op) +
                               " is not one that Annulus has: MPI_SUM, MPI_PROD, MPI_MIN and MPI_MAX");
  }
}

}  // namespace annulus_mpi
