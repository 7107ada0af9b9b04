// The build id is in a note of the loaded file, which the dynamic linker's list of files leads to.
#include "base/library.h"

#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>

namespace annulus {
namespace {

// Enough to tell builds apart in a log.
constexpr size_t kShownBytes = 8;

constexpr uintptr_t RoundedUp(uintptr_t bytes) { return (bytes + 3) & ~uintptr_t{3}; }

void ReadNotes(const char* at, const char* end, Library* library) {
  while (at + sizeof(ElfW(Nhdr)) <= end) {
    ElfW(Nhdr) note;
    std::memcpy(&note, at, sizeof note);
    const char* const name = at + sizeof note;
    const char* const content = name + RoundedUp(note.n_namesz);
    const bool is_build_id = note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof ELF_NOTE_GNU &&
                             std::memcmp(name, ELF_NOTE_GNU, sizeof ELF_NOTE_GNU) == 0;
    if (is_build_id) {
      return void(std::memcpy(library->build.data(), content, std::min<size_t>(note.n_descsz, Library::kBuildBytes)));
    }
    at = content + RoundedUp(note.n_descsz);
  }
}

std::string ProgramFile() {
  char path[PATH_MAX];
  const ssize_t bytes = readlink("/proc/self/exe", path, sizeof path);
  return bytes > 0 ? std::string(path, static_cast<size_t>(bytes)) : "";
}

// Fills in *into when `file` is the one that holds this code. Returns whether it was.
int FillLibrary(dl_phdr_info* file, size_t /*bytes*/, void* into) {
  const auto here = reinterpret_cast<uintptr_t>(&FillLibrary);
  const auto holds = [&](const ElfW(Phdr) & part) {
    const uintptr_t begin = file->dlpi_addr + part.p_vaddr;
    return part.p_type == PT_LOAD && here >= begin && here < begin + part.p_memsz;
  };
  const ElfW(Phdr)* const parts_end = file->dlpi_phdr + file->dlpi_phnum;
  if (std::none_of(file->dlpi_phdr, parts_end, holds)) return 0;
  auto* const library = static_cast<Library*>(into);
  library->file = *file->dlpi_name == '\0' ? ProgramFile() : file->dlpi_name;
  for (const ElfW(Phdr)* part = file->dlpi_phdr; part != parts_end; ++part) {
    if (part->p_type != PT_NOTE) continue;
    const char* const begin = reinterpret_cast<const char*>(file->dlpi_addr + part->p_vaddr);
    ReadNotes(begin, begin + part->p_memsz, library);
  }
  return 1;
}

Library FindLibrary() {
  Library library;
  dl_iterate_phdr(&FillLibrary, &library);
  return library;
}

}  // namespace

const Library& ThisLibrary() {
  static const Library library = FindLibrary();
  return library;
}

std::string LibraryText(const Library& library) {
  std::string text = VersionText(library.version);
  if (std::any_of(library.build.begin(), library.build.end(), [](std::byte byte) { return byte != std::byte{0}; })) {
    text += ", build ";
    for (size_t i = 0; i < kShownBytes; ++i) {
      const auto byte = static_cast<unsigned>(library.build[i]);
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
  }
  return library.file.empty() ? text : text + ", " + library.file;
}

}  // namespace annulus
