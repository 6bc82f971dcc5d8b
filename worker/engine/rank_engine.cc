#include "worker/engine/rank_engine.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/cgroup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/logging.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "common/base/thread_room.h"
#include "glog/logging.h"
#include "worker/engine/checked_backend.h"
#include "worker/engine/exceptions.h"
#include "worker/engine/model_engine.h"
#include "worker/model/weights_io.h"
#include "worker/parallel/link_probe.h"
#include "worker/parallel/transport.h"

namespace stemma::worker {
namespace {

// Returns which heads, columns, experts and tokens of the model this rank has.
absl::StatusOr<ModelShard> ShardOf(const internal::v1::Configure& configure) {
  ASSIGN_OR_RETURN(const ModelDirectory directory, OpenModelDirectory(configure.config().model()));
  const v1::Mesh& mesh = configure.config().mesh();
  return MakeModelShard(directory.config, {.tp_rank = PlaceOf(mesh, configure.rank()).tp_rank,
                                           .tp_size = static_cast<int64_t>(TpSize(mesh)),
                                           .ep_size = EpSize(mesh)});
}

// How many ranks hold the same K/V heads is the model's to say, where ranks share its heads at all.
absl::StatusOr<int64_t> KvReplicas(const internal::v1::Configure& configure) {
  if (TpSize(configure.config().mesh()) == 1) return 1;
  ASSIGN_OR_RETURN(const ModelShard shard, ShardOf(configure));
  return shard.kv_replicas();
}

absl::StatusOr<Backend> BackendOf(const Device& device, const internal::v1::Configure& configure) {
  ASSIGN_OR_RETURN(const at::ScalarType run_dtype, ParseRunDtype(configure.config().dtype()));
  ASSIGN_OR_RETURN(const ModelShard shard, ShardOf(configure));
  const ModelConfig config = shard.LocalConfig();
  std::optional<Backend> backend;
  RETURN_IF_ERROR(CatchExceptions([&] {
    backend = CheckedBackend(device, {run_dtype, config.num_heads, config.num_kv_heads, config.head_size},
                             configure.data_directory());
    return absl::OkStatus();
  }));
  return *std::move(backend);
}

absl::StatusOr<std::unique_ptr<Rendezvous>> Meet(const internal::v1::Configure& configure, const std::string& address,
                                                 const TellStore& tell, const RendezvousTimeouts& timeouts) {
  if (configure.rank() > 0) {
    ASSIGN_OR_RETURN(const HostPort store, ParseDialAddress(configure.store()));
    return Rendezvous::Join(store, address, timeouts);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Rendezvous> opened, Rendezvous::Open({.host = address}, timeouts));
  internal::v1::StoreOpened message;
  message.set_address(opened->address().Text());
  tell(message);
  return opened;
}

// The rendezvous ends here: its store lives on in the communicators for as long as they need it.
absl::StatusOr<MeshRanks> Connect(const Device& device, const internal::v1::Configure& configure,
                                  const std::string& address, const TellStore& tell,
                                  const RendezvousTimeouts& timeouts) {
  const uint32_t ranks = NumRanks(configure.config().mesh());
  if (configure.rank() >= ranks) {
    return absl::InvalidArgumentError(absl::StrCat("the server's mesh of ", ranks, " has no rank ", configure.rank()));
  }
  if (ranks == 1) return OnlyRank();
  SetLogRank(configure.rank());
  if (address.empty()) {
    return absl::InvalidArgumentError(
        "no address of this host is known at which the other workers reach it: give it "
        "with --address");
  }
  ASSIGN_OR_RETURN(const int64_t kv_replicas, KvReplicas(configure));
  ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous, Meet(configure, address, tell, timeouts));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Transport> transport, device.MakeTransport());
  ASSIGN_OR_RETURN(MeshRanks connected,
                   ConnectMesh(*rendezvous, configure.config().mesh(), configure.rank(), kv_replicas, *transport));
  LOG(INFO) << "has met the other ranks of " << ranks;
  return connected;
}

// Computes with as many threads as the model will: sums are a part of what a collective takes.
absl::StatusOr<EngineParts> PartsOf(const internal::v1::Configure& configure, MeshRanks ranks, at::Device device) {
  const auto threads = static_cast<int>(configure.config().threads());
  // LibTorch and OpenMP each have a pool of so many; one that cannot start them hangs, or ends the process.
  if (threads > 0) {
    RETURN_IF_ERROR(CheckThreadRoom(2 * static_cast<size_t>(threads)));
    at::set_num_threads(threads);
  }
  EngineParts parts;
  RETURN_IF_ERROR(CatchExceptions([&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<AxisLink> links, ProbeLinks(ranks, device, RealClock()));
    for (const AxisLink& link : links) {
      v1::LinkInfo& told = *parts.links.Add();
      told.set_axis(link.axis);
      told.set_ranks(static_cast<uint32_t>(link.ranks));
      told.set_message_s(link.message_s);
      told.set_byte_s(link.byte_s);
      LOG(INFO) << "link " << link.axis << ", " << link.ranks << " ranks: " << link.message_s << " s a message, "
                << link.byte_s << " s a byte";
    }
    return absl::OkStatus();
  }));
  parts.ranks = std::move(ranks);
  return parts;
}

// Says how many threads compute where nobody said it and LibTorch would take more than the process may use.
internal::v1::Configure WithinCores(const internal::v1::Configure& told) {
  internal::v1::Configure configure = told;
  const uint32_t cores = ComputeCores();
  if (told.config().threads() == 0 && static_cast<int>(cores) < at::get_num_threads()) {
    configure.mutable_config()->set_threads(cores);
  }
  return configure;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const Device& device, const internal::v1::Configure& told,
                                                     const WorkerIdentity& identity, const TellStore& tell,
                                                     const RendezvousTimeouts& timeouts) {
  ASSIGN_OR_RETURN(MeshRanks ranks, Connect(device, told, identity.address, tell, timeouts));
  const internal::v1::Configure configure = WithinCores(told);
  if (FailpointFails("load.met", configure.rank())) return absl::UnavailableError("a test lets the rendezvous fail");
  ASSIGN_OR_RETURN(Backend backend, BackendOf(device, configure));
  ASSIGN_OR_RETURN(EngineParts parts, PartsOf(configure, std::move(ranks), backend.device));
  RETURN_IF_ERROR(CatchExceptions([&] {
    parts.device_name = device.identity().name;
    return absl::OkStatus();
  }));
  return ModelEngine::Create(configure, identity.incarnation, std::move(backend), std::move(parts));
}

uint32_t ComputeCores() {
  const int64_t cores = at::get_num_threads();
  return static_cast<uint32_t>(std::min(cores, CgroupCores(OwnCgroupFolders()).value_or(cores)));
}

std::string ComputeCoreGroup() {
  const std::vector<std::string> folders = OwnCgroupFolders();
  const int64_t cores = at::get_num_threads();
  return CgroupCores(folders).value_or(cores) < cores ? CgroupOfCores(folders) : "";
}

}  // namespace stemma::worker
