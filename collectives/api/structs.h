// How structs cross the C API, which may grow in either direction: the program was built with an older header than the
// library, or with a newer one. docs/decisions/0039-structs-that-grow.md gives the rules.
//
// Threads: any.
#pragma once

#include <cstring>
#include <string>

#include "base/status.h"

namespace annulus::c_api {

// No struct will ever be larger; a larger number is an uninitialised one.
inline constexpr size_t kLargestStruct = 64 * 1024;

// Checks the size that a program gave for its `type`. Every struct is a whole number of words without padding.
inline Status CheckStructBytes(size_t bytes, size_t smallest, const char* type) {
  if (bytes >= smallest && bytes <= kLargestStruct && bytes % sizeof(void*) == 0) return Status();
  return Status::Invalid(std::string("struct_bytes is ") + std::to_string(bytes) + "; set it to sizeof(" + type + ")");
}

// Reads the program's struct into *known, which holds the defaults of what the program's version does not have.
// Errors: kInvalidArgument  no version has this size.
//         kUnsupported      the program set a field that this library does not know.
template <typename Struct>
Status ReadStruct(const Struct* given, size_t smallest, const char* type, Struct* known) {
  const size_t bytes = given->struct_bytes;
  ANNULUS_RETURN_IF_ERROR(CheckStructBytes(bytes, smallest, type));
  const auto* const all = reinterpret_cast<const unsigned char*>(given);
  for (size_t at = sizeof *known; at < bytes; ++at) {
    if (all[at] != 0) {
      return {Code::kUnsupported, std::string("byte ") + std::to_string(at) + " of " + type +
                                      " is set, in a field that this version of Annulus does not have"};
    }
  }
  std::memcpy(known, given, bytes < sizeof *known ? bytes : sizeof *known);
  return Status();
}

// Fills the program's struct, whose struct_bytes is its size: what its version does not have is left out, what this
// library does not have is 0. struct_bytes then tells how much was filled. Errors: kInvalidArgument as above.
template <typename Struct>
Status FillStruct(Struct full, const char* type, Struct* out) {
  const size_t bytes = out->struct_bytes;
  ANNULUS_RETURN_IF_ERROR(CheckStructBytes(bytes, 2 * sizeof(size_t), type));
  full.struct_bytes = bytes < sizeof full ? bytes : sizeof full;
  std::memset(static_cast<void*>(out), 0, bytes);
  std::memcpy(out, &full, full.struct_bytes);
  return Status();
}

}  // namespace annulus::c_api
