#include "worker/backend/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>
#include <span>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace stemma::worker {
namespace {

using Header = ElfW(Phdr);
using Note = ElfW(Nhdr);

constexpr char kOwner[] = "GNU";

std::span<const Header> HeadersOf(const dl_phdr_info& info) { return {info.dlpi_phdr, info.dlpi_phnum}; }

bool Holds(const dl_phdr_info& info, uintptr_t address) {
  for (const Header& header : HeadersOf(info)) {
    const uintptr_t begin = info.dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && address >= begin && address < begin + header.p_memsz) return true;
  }
  return false;
}

size_t RoundedUp(size_t bytes) { return (bytes + 3) / 4 * 4; }

// Looks for the build id among the notes of one segment.
std::string FindBuildId(const char* notes, size_t bytes) {
  while (bytes >= sizeof(Note)) {
    Note note;
    std::memcpy(&note, notes, sizeof(note));
    const size_t name_bytes = RoundedUp(note.n_namesz), id_bytes = RoundedUp(note.n_descsz);
    if (bytes < sizeof(note) + name_bytes + id_bytes) return "";
    const char* const name = notes + sizeof(note);
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof(kOwner) &&
        std::memcmp(name, kOwner, sizeof(kOwner)) == 0) {
      return absl::BytesToHexString(absl::string_view(name + name_bytes, note.n_descsz));
    }
    notes += sizeof(note) + name_bytes + id_bytes;
    bytes -= sizeof(note) + name_bytes + id_bytes;
  }
  return "";
}

int VisitObject(dl_phdr_info* info, size_t /*size*/, void* id) {
  if (!Holds(*info, reinterpret_cast<uintptr_t>(&OwnBuildId))) return 0;
  for (const Header& header : HeadersOf(*info)) {
    if (header.p_type != PT_NOTE) continue;
    std::string found = FindBuildId(reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr), header.p_memsz);
    if (!found.empty()) *static_cast<std::string*>(id) = std::move(found);
  }
  return 1;
}

}  // namespace

std::string OwnBuildId() {
  std::string id;
  dl_iterate_phdr(VisitObject, &id);
  return id;
}

}  // namespace stemma::worker
