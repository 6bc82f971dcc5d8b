#include "worker/parallel/rendezvous.h"

#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "worker/parallel/c10d_communicator.h"
#include "worker/parallel/listen_socket.h"
#include "worker/parallel/local_communicator.h"
#include "worker/parallel/transport.h"

namespace stemma::worker {
namespace {

absl::Status Prefixed(const std::string& what, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(what, ": ", std::string(status.message())));
}

c10d::TCPStoreOptions StoreOptions(uint16_t port, const RendezvousTimeouts& timeouts) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = absl::ToChronoMilliseconds(timeouts.join);
  return options;
}

std::string HereKey(int rank) { return absl::StrCat("here/", rank); }

// Returns when every rank has come. Errors: Unavailable - which have not in time.
absl::Status AwaitRanks(c10d::Store& store, int rank, int size, absl::Duration timeout) {
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(HereKey(r));
  RETURN_IF_ERROR(CatchC10d(timeout, [&] { store.set(HereKey(rank), std::vector<uint8_t>{1}); }));
  absl::Status all_here = CatchC10d(timeout, [&] { store.wait(keys, absl::ToChronoMilliseconds(timeout)); });
  if (all_here.ok()) return all_here;
  std::vector<int> missing;
  RETURN_IF_ERROR(CatchC10d(timeout, [&] {
    for (int r = 0; r < size; ++r) {
      if (!store.check({HereKey(r)})) missing.push_back(r);
    }
  }));
  if (missing.empty()) return all_here;  // the last came just now, too late
  return absl::UnavailableError(absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "),
                                             " of ", size, " did not come within ", absl::FormatDuration(timeout)));
}

}  // namespace

struct Rendezvous::Store {
  c10::intrusive_ptr<c10d::TCPStore> tcp;
};

Rendezvous::Rendezvous(std::unique_ptr<Store> store, HostPort address, std::string own_host,
                       const RendezvousTimeouts& timeouts)
    : store_(std::move(store)), address_(std::move(address)), own_host_(std::move(own_host)), timeouts_(timeouts) {}

Rendezvous::~Rendezvous() = default;

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Open(const HostPort& listen,
                                                             const RendezvousTimeouts& timeouts) {
  IgnorePipeSignal();  // a write to a peer that has just died is an error of the collective
  ASSIGN_OR_RETURN(ListenSocket socket, ListenSocket::Open(listen));
  const HostPort address = socket.address();
  auto store = std::make_unique<Store>();
  RETURN_IF_ERROR(CatchC10d(timeouts.join, [&] {
    c10d::TCPStoreOptions options = StoreOptions(address.port, timeouts);
    options.isServer = true;
    options.masterListenFd = socket.Release();
    store->tcp = c10::make_intrusive<c10d::TCPStore>(address.host, options);
  }));
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(store), address, address.host, timeouts));
}

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Join(const HostPort& address, const std::string& own_host,
                                                             const RendezvousTimeouts& timeouts) {
  IgnorePipeSignal();  // a write to a peer that has just died is an error of the collective
  ASSIGN_OR_RETURN(const std::string host, NumericHost(address.host));
  ASSIGN_OR_RETURN(std::string own, NumericHost(own_host));
  auto store = std::make_unique<Store>();
  const absl::Status joined = CatchC10d(timeouts.join, [&] {
    store->tcp = c10::make_intrusive<c10d::TCPStore>(host, StoreOptions(address.port, timeouts));
  });
  if (!joined.ok()) return Prefixed(absl::StrCat("no store of the gang answers on ", address.Text()), joined);
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(store), address, std::move(own), timeouts));
}

absl::StatusOr<std::unique_ptr<Communicator>> Rendezvous::Connect(const std::string& axis, int rank, int size,
                                                                  const Transport& transport, bool pairs_apart) {
  if (size == 1) return std::make_unique<LocalCommunicator>(axis);
  const std::string what = absl::StrCat("rendezvous of axis ", axis, ", rank ", rank);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(axis, store_->tcp);
  if (const absl::Status here = AwaitRanks(*store, rank, size, timeouts_.join); !here.ok()) return Prefixed(what, here);
  std::unique_ptr<Communicator> ranks;
  const absl::Status connected = CatchC10d(timeouts_.join, [&] {
    AxisBackends backends =
        transport.Connect(store, {.axis = axis,
                                  .rank = rank,
                                  .size = size,
                                  .pairs_apart = pairs_apart,
                                  .own_host = own_host_,
                                  .join_timeout = absl::ToChronoMilliseconds(timeouts_.join),
                                  .collective_timeout = absl::ToChronoMilliseconds(timeouts_.collective)});
    ranks = std::make_unique<C10dCommunicator>(axis, std::move(backends), timeouts_.collective);
  });
  if (!connected.ok()) return Prefixed(what, connected);
  return ranks;
}

}  // namespace stemma::worker
