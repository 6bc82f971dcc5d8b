// Rendezvous: how the worker processes of one generation find each other, and where their communicators come from.
//
// Rank 0 opens the generation's store (c10d's TCPStore) and tells its address, the others join it; then all ranks
// connect their axes in one order, by the transport of their device. Called by worker/engine on the engine thread.
//
// Opening or joining one makes the process ignore SIGPIPE: Gloo's writes raise it when a peer has just died.
//
// Everything listens on the one address that is given and no other; nothing is looked up by name. Neither the store nor
// Gloo asks who calls: beyond loopback the address must lie in a network that only workers reach.
//
// A rendezvous outlives its communicators' Connect on every rank, and is of no use afterwards. A rank destroys its
// communicators in one order with all others, once every exchange has ended, none of them in the destructor of a static
// object. After an error, destroying the communicator may take as long as the timeout of what is in flight; a process
// that cannot wait for that exits without it, as a worker does.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

class Transport;

struct RendezvousTimeouts {
  absl::Duration join = absl::Minutes(1);  // for all ranks to have come, in Join and in each Connect
  // The bound of one wait. A rank may wait for another as long as the server gives that one for its work, twenty times
  // the predicted seconds and more (server/protocol/job_watch.h): the server ends a rank that stalls, and the
  // connection one that dies, so this is above what any step takes.
  absl::Duration collective = absl::Hours(24 * 7);
};

class Rendezvous {
 public:
  // Opens the store. `listen`: this process's address that the others reach, an IP literal or `localhost`; port 0: any
  // free one. Errors: InvalidArgument - the host; Unavailable - it cannot be bound.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Open(const HostPort& listen, const RendezvousTimeouts& timeouts);
  // Joins another process's store. `own_host`: as of `listen`, this process's.
  // Errors: InvalidArgument - a host; Unavailable - no store answers there in time.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Join(const HostPort& store, const std::string& own_host,
                                                          const RendezvousTimeouts& timeouts);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const HostPort& address() const { return address_; }  // the store's

  // Connects this rank to the others of an axis: returns when all are there. Where an axis has several sets of ranks
  // each has a name of its own ("tp.3"), and no name is used twice. With one rank nothing is opened. The transport is
  // not needed afterwards. `pairs_apart`: of AxisGroup.
  // Errors: Unavailable - ranks that have not come in time, or have gone; names the axis.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const std::string& axis, int rank, int size,
                                                        const Transport& transport, bool pairs_apart = false);

 private:
  struct Store;  // hides c10d
  Rendezvous(std::unique_ptr<Store> store, HostPort address, std::string own_host, const RendezvousTimeouts& timeouts);

  const std::unique_ptr<Store> store_;
  const HostPort address_;
  const std::string own_host_;
  const RendezvousTimeouts timeouts_;
};

}  // namespace stemma::worker
