#include "worker/engine/rank_engine.h"

#include <ATen/Parallel.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/failpoint.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/engine/model_engine.h"
#include "worker/parallel/gloo_transport.h"

namespace stemma::worker {
namespace {

constexpr char kAxis[] = "dp";

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

// The rendezvous ends here: its store lives on in the communicator for as long as that needs it.
absl::StatusOr<std::unique_ptr<Communicator>> Connect(const internal::v1::Configure& configure,
                                                      const std::string& address, const TellStore& tell,
                                                      const RendezvousTimeouts& timeouts) {
  const uint32_t ranks = NumRanks(configure.config().mesh());
  if (configure.rank() >= ranks) {
    return absl::InvalidArgumentError(absl::StrCat("the server's mesh of ", ranks, " has no rank ", configure.rank()));
  }
  if (ranks == 1) return nullptr;
  if (address.empty()) {
    return absl::InvalidArgumentError(
        "no address of this host is known at which the other workers reach it: give it "
        "with --address");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous, Meet(configure, address, tell, timeouts));
  ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> connected,
      rendezvous->Connect(kAxis, static_cast<int>(configure.rank()), static_cast<int>(ranks), *MakeGlooTransport()));
  LOG(INFO) << "rank " << configure.rank() << " of " << ranks << " has met the others";
  return connected;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const internal::v1::Configure& configure,
                                                     const WorkerIdentity& identity, const TellStore& tell,
                                                     const RendezvousTimeouts& timeouts) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> dp, Connect(configure, identity.address, tell, timeouts));
  if (FailpointFails("load.met", configure.rank())) return absl::UnavailableError("a test lets the rendezvous fail");
  return ModelEngine::Create(configure, identity.incarnation, MakeCpuBackend(), /*copies=*/nullptr, std::move(dp));
}

uint32_t ComputeCores() { return static_cast<uint32_t>(at::get_num_threads()); }

}  // namespace stemma::worker
