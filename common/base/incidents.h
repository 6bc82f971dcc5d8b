// What is left of a generation of workers that was lost, for whoever looks for the reason: the files of
// <data>/incidents/<epoch>-<generation>/, one of each process that still could write. The server and every rank add
// theirs; nobody reads them back.
//
// Thread safety: none within one process; safe between processes, as each has its own file.
// Invariants:
//  (1) nothing is forced to the disk: a disk that stands still may be what the incident is about.
//  (2) the newest kIncidentsMax folders stay.
//  (3) only the user that wrote them reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace stemma {

inline constexpr size_t kIncidentsMax = 20;

// "000012-0003". Names are as old as their numbers say; their texts sort otherwise once one is longer.
std::string IncidentName(uint64_t epoch, uint64_t generation);

// Writes a file of the incident, and makes its folder where it is the first. Errors: NotFound - there is no such data
// directory on this host; what writing a file leads to.
absl::Status WriteIncidentFile(const std::string& data_directory, const std::string& incident, const std::string& file,
                               std::string_view content);

// Removes all but the newest kIncidentsMax incidents. What has another name stays.
void RemoveOldIncidents(const std::string& data_directory);

}  // namespace stemma
