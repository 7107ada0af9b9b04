#include "frameworks/mpi/elements.h"

#include <string>

#include "frameworks/mpi/error.h"

namespace annulus_mpi {
namespace {

template <typename Integer>
constexpr annulus_type_t IntegerType() {
  constexpr bool kSign = static_cast<Integer>(-1) < static_cast<Integer>(0);
  switch (sizeof(Integer)) {
    case 1:
      return kSign ? ANNULUS_INT8 : ANNULUS_UINT8;
    case 2:
      return kSign ? ANNULUS_INT16 : ANNULUS_UINT16;
    case 4:
      return kSign ? ANNULUS_INT32 : ANNULUS_UINT32;
    default:
      return kSign ? ANNULUS_INT64 : ANNULUS_UINT64;
  }
}

// What MPI can do with the elements of a type.
enum class Numbers { kNone, kInteger, kFloat, kComplex, kBool };

struct TypeRow {
  Handle handle;
  annulus_type_t type;
  Numbers numbers;
};

constexpr TypeRow kTypes[] = {
    {kBYTE, ANNULUS_UINT8, Numbers::kNone},
    {kCHAR, ANNULUS_UINT8, Numbers::kNone},
    {kC_BOOL, ANNULUS_BOOL, Numbers::kBool},
    {kCXX_BOOL, ANNULUS_BOOL, Numbers::kBool},
    {kSIGNED_CHAR, IntegerType<signed char>(), Numbers::kInteger},
    {kUNSIGNED_CHAR, IntegerType<unsigned char>(), Numbers::kInteger},
    {kSHORT, IntegerType<short>(), Numbers::kInteger},
    {kUNSIGNED_SHORT, IntegerType<unsigned short>(), Numbers::kInteger},
    {kINT, IntegerType<int>(), Numbers::kInteger},
    {kUNSIGNED, IntegerType<unsigned>(), Numbers::kInteger},
    {kLONG, IntegerType<long>(), Numbers::kInteger},
    {kUNSIGNED_LONG, IntegerType<unsigned long>(), Numbers::kInteger},
    {kLONG_LONG, IntegerType<long long>(), Numbers::kInteger},
    {kUNSIGNED_LONG_LONG, IntegerType<unsigned long long>(), Numbers::kInteger},
    {kINT8_T, ANNULUS_INT8, Numbers::kInteger},
    {kUINT8_T, ANNULUS_UINT8, Numbers::kInteger},
    {kINT16_T, ANNULUS_INT16, Numbers::kInteger},
    {kUINT16_T, ANNULUS_UINT16, Numbers::kInteger},
    {kINT32_T, ANNULUS_INT32, Numbers::kInteger},
    {kUINT32_T, ANNULUS_UINT32, Numbers::kInteger},
    {kINT64_T, ANNULUS_INT64, Numbers::kInteger},
    {kUINT64_T, ANNULUS_UINT64, Numbers::kInteger},
    {kAINT, IntegerType<intptr_t>(), Numbers::kInteger},
    {kCOUNT, ANNULUS_INT64, Numbers::kInteger},
    {kOFFSET, ANNULUS_INT64, Numbers::kInteger},
    {kFLOAT, ANNULUS_FLOAT32, Numbers::kFloat},
    {kDOUBLE, ANNULUS_FLOAT64, Numbers::kFloat},
    {kC_COMPLEX, ANNULUS_COMPLEX64, Numbers::kComplex},
    {kC_FLOAT_COMPLEX, ANNULUS_COMPLEX64, Numbers::kComplex},
    {kCXX_FLOAT_COMPLEX, ANNULUS_COMPLEX64, Numbers::kComplex},
    {kC_DOUBLE_COMPLEX, ANNULUS_COMPLEX128, Numbers::kComplex},
    {kCXX_DOUBLE_COMPLEX, ANNULUS_COMPLEX128, Numbers::kComplex},
};

const TypeRow& RowOf(Handle datatype) {
  for (const TypeRow& row : kTypes) {
    if (row.handle == datatype) return row;
  }
  throw Error(kERR_TYPE, "datatype " + std::to_string(datatype) +
                             " is not one that Annulus has: integers, floats, complex numbers and bytes of C");
}

// Bools have all of them: their bits are 0 or 1.
constexpr struct {
  Handle handle;
  annulus_op_t op;
  bool of_integers, of_floats, of_complex;
} kOps[] = {
    {kSUM, ANNULUS_SUM, true, true, true},     {kPROD, ANNULUS_PROD, true, true, true},
    {kMIN, ANNULUS_MIN, true, true, false},    {kMAX, ANNULUS_MAX, true, true, false},
    {kBAND, ANNULUS_BAND, true, false, false}, {kLAND, ANNULUS_BAND, false, false, false},
    {kBOR, ANNULUS_BOR, true, false, false},   {kLOR, ANNULUS_BOR, false, false, false},
    {kBXOR, ANNULUS_BXOR, true, false, false}, {kLXOR, ANNULUS_BXOR, false, false, false},
};

}  // namespace

annulus_type_t TypeOf(Handle datatype) { return RowOf(datatype).type; }

size_t BytesOf(int count, Handle datatype) {
  Require(count >= 0, kERR_COUNT, "the count is " + std::to_string(count) + " (MPI counts in 32 bits)");
  return static_cast<size_t>(count) * annulus_type_bytes(TypeOf(datatype));
}

Reduction ReductionOf(Handle datatype, Handle op) {
  const TypeRow& row = RowOf(datatype);
  for (const auto& each : kOps) {
    if (each.handle != op) continue;
    const bool allowed[] = {false, each.of_integers, each.of_floats, each.of_complex, true};  // By Numbers.
    Require(allowed[static_cast<int>(row.numbers)], kERR_OP,
            "operation " + std::to_string(op) + " is not for datatype " + std::to_string(datatype));
    return {row.type, each.op};
  }
  throw Error(kERR_OP, "operation " + std::to_string(op) +
                           " is not one that Annulus has: MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, and MPI_BAND, MPI_LAND "
                           "and their like");
}

}  // namespace annulus_mpi
