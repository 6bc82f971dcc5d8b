// The control groups (cgroup v2) around this process: what a container, a job or a service may use is the least that
// its own group and each group around that one allow.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stemma {

// Returns the folders of this process's group and of those around it, its own first; none: it is in no group.
std::vector<std::string> OwnCgroupFolders();

// Returns the folders below `root` of the group that the text of /proc/self/cgroup names, its own first, up to `root`.
std::vector<std::string> CgroupFoldersOf(const std::string& root, std::string_view proc_self_cgroup);

// Returns the least limit of the memory of these groups (memory.max, or memory.high, above which the kernel holds
// processes up), and the least that one of them leaves. Pages of files (inactive_file and active_file) count as left,
// as in MemAvailable: the kernel drops them for whoever needs memory, and a worker that has read its model's files has
// made many, twice active ones. Nothing: there is no limit, or it cannot be read.
std::optional<int64_t> CgroupLimitBytes(std::span<const std::string> folders);
std::optional<int64_t> CgroupLeftBytes(std::span<const std::string> folders);

// Returns the cores whose time these groups may use (cpu.max), rounded up; nothing: as many as there are.
std::optional<int64_t> CgroupCores(std::span<const std::string> folders);

// Returns the group that decides the number above: of groups with the same one the outermost, which has the most
// processes in it. Empty: none has a limit.
std::string CgroupOfLeftBytes(std::span<const std::string> folders);
std::string CgroupOfCores(std::span<const std::string> folders);

}  // namespace stemma
