// Library: which build of Annulus this process has loaded, and from which file.
//
// Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "base/version.h"

namespace annulus {

struct Library {
  static constexpr size_t kBuildBytes = 20;

  LibraryVersion version = kLibraryVersion;
  // The linker's build id, shortened or filled with zeros; all zeros when the file has none. It depends on nothing but
  // what was linked.
  std::array<std::byte, kBuildBytes> build{};
  // The shared library, or the program that Annulus was linked into. Not sent in handshakes; "" when unknown.
  std::string file;
};

// Found once.
const Library& ThisLibrary();

// "1.0.0, build 1f2e3d4c5b6a7988, /usr/lib/libannulus.so.1"; without the parts that are not known.
std::string LibraryText(const Library& library);

}  // namespace annulus
