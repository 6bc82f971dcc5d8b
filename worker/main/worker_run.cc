#include "worker/main/worker_run.h"

#include <elf.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/descriptors.h"
#include "common/base/heap.h"
#include "common/base/process.h"
#include "common/base/thread_room.h"
#include "glog/logging.h"
#include "worker/main/session_ready_file.h"
#include "worker/rpc/session.h"

namespace stemma::worker {
namespace {

constexpr absl::Duration kPause = absl::Seconds(2);  // between sessions: a server that refuses us is not stormed

// A worker runs fewer, beside those of its compute; those of gRPC grow with the machine.
constexpr size_t kThreads = 16, kThreadsOfProcessor = 1;

// What the kernel puts behind the path of a program whose file is not there any more.
constexpr std::string_view kDeleted = " (deleted)";

std::string RandomIncarnation() {
  std::random_device random;
  return absl::StrFormat("%08x%08x", random(), random());
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return 0;
  const bool cannot_run_here = absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
                               absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status) ||
                               absl::IsPermissionDenied(status);
  return cannot_run_here ? 2 : 1;
}

// Whether a program's file has the table of sections that linkers put at its end. One that is being copied there lacks
// it; it would start all the same, and die without a word.
bool IsWholeProgram(const std::string& path) {
  Elf64_Ehdr header = {};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  return file.good() && !error && header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize <= bytes;
}

[[noreturn]] void StartAnew(const WorkerMainOptions& options, const absl::Status& why) {
  LOG(WARNING) << "the session is over: " << (why.ok() ? "the server stops" : why.message())
               << "; waits for the server as a new incarnation";
  RealClock().Sleep(kPause);
  std::vector<char*> arguments;
  for (const std::string& argument : options.argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  std::error_code error;
  std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  // The file was replaced by another, as an upgrade does: it is the one to go on with.
  if (self.ends_with(kDeleted)) self.resize(self.size() - kDeleted.size());
  CloseDescriptorsAtExec();  // Gloo's, and those of who writes stacks, are opened to outlive it
  // What this process told CUDA and NCCL (worker/parallel/cuda_environment.h) is no operator's choice to the next one.
  for (const char* name : options.open_variables) unsetenv(name);
  setenv(kStartedAnewVariable, "1", /*overwrite=*/1);
  if (!error && IsWholeProgram(self)) execv(self.c_str(), arguments.data());
  LOG(WARNING) << self << " is gone, or is no whole program: goes on as the one that it was";
  execv("/proc/self/exe", arguments.data());
  LOG(ERROR) << "cannot start anew: " << strerror(errno);
  _exit(1);
}

}  // namespace

int RunWorker(const WorkerMainOptions& options, EngineFactory factory) {
  if (options.die_with_parent) DieWithParent(getppid());
  IgnoreFileSizeSignal();
  JoinFreedBlocks();
  if (const absl::Status room = CheckThreadRoom(kThreads + kThreadsOfProcessor * NumProcessors()); !room.ok()) {
    Say(kWorkerProgram, options.log, LogLevel::kError, std::string(room.message()));
    return ExitCodeOf(room);
  }
  RaiseDescriptorLimit();  // a connection to every other rank, of each group
  SessionReadyFile ready_file(options.ready_file, options.server + "\n");
  const SessionEnd end = RunSession({.server = options.server,
                                     .secret = options.secret,
                                     .incarnation = RandomIncarnation(),
                                     .address = options.address,
                                     .device = options.device.Text(),
                                     .build_id = options.build_id,
                                     .device_id = options.device_id,
                                     .cores = options.cores,
                                     .core_group = options.core_group,
                                     .device_memory = options.device_memory,
                                     .on_ready = [&] { return ready_file.Write(); },
                                     .tls = options.tls},
                                    std::move(factory));
  ready_file.End();  // also for an engine that was left, and becomes ready now
  // One that was refused, as for other weights than the lineage's, would only load them again and be refused again.
  const bool over = end.status.ok() || absl::IsUnavailable(end.status);
  if (over && !options.once) StartAnew(options, end.status);
  if (end.status.ok()) {
    LOG(INFO) << "leaves: the server stops";
  } else {
    Say(kWorkerProgram, options.log, LogLevel::kError, std::string(end.status.message()));
  }
  if (end.engine_left) _exit(ExitCodeOf(end.status));
  return ExitCodeOf(end.status);
}

}  // namespace stemma::worker
