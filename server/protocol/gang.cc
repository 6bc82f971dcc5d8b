#include "server/protocol/gang.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/mesh.h"
#include "common/base/rank_phase.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "server/protocol/link_reports.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {
namespace {

// Its Register was checked. A worker that names no device has the first of its host's processors.
DeviceName DeviceOf(const internal::v1::Register& message) {
  return message.device().empty() ? DeviceName{.kind = "cpu"} : ParseDevice(message.device()).value();
}

Gang::Worker WorkerOf(SessionId session, const internal::v1::Register& message) {
  return {.session = session,
          .incarnation = message.incarnation(),
          .device = DeviceOf(message),
          .host = WorkerText(message.host()),
          .machine = WorkerText(message.machine()),
          .memory_pool = {message.machine(), message.host(), message.memory_group()},
          .core_pool = {message.machine(), message.host(), message.core_group()},
          .pid = message.pid(),
          .build_id = WorkerText(message.build_id()),
          .device_id = WorkerText(message.device_id()),
          .address = message.address(),
          .cores = message.cores(),
          .memory = {static_cast<int64_t>(message.memory_free_bytes()), static_cast<int64_t>(message.host_free_bytes()),
                     static_cast<int64_t>(message.memory_bytes())},
          .phase = kWaitingPhase};
}

std::vector<v1::KernelOff> KernelsOffOf(const internal::v1::Ready& message) {
  std::vector<v1::KernelOff> kernels(message.kernels_off().begin(), message.kernels_off().end());
  for (v1::KernelOff& off : kernels) off.set_reason(WorkerText(off.reason()));
  return kernels;
}

std::string PlaceText(const Gang::Worker& worker) {
  return absl::StrCat(worker.device.Text(), " of host ", worker.host.empty() ? "?" : worker.host);
}

bool OthersReach(const Gang::Worker& worker) {
  return !worker.address.empty() && worker.address != "::1" && !absl::StartsWith(worker.address, "127.");
}

// Tells whether two workers have one device. Processes of one host that each see one GPU all call it cuda:0, and hosts
// may have one name: where the hardware is known, it decides.
bool HaveOneDevice(const Gang::Worker& a, const Gang::Worker& b) {
  if (!a.device_id.empty() && !b.device_id.empty()) return a.device_id == b.device_id;
  return a.host == b.host && a.machine == b.machine && a.device == b.device;
}

std::string BuildText(const Gang::Worker& worker) {
  return worker.build_id.empty() ? "no build id" : absl::StrCat("build ", worker.build_id);
}

using PoolOf = Pool Gang::Worker::*;

// Returns how many share a worker's memory or cores, that one among them.
uint32_t Sharing(std::span<const Gang::Worker> workers, const Gang::Worker& of, PoolOf pool) {
  const auto shares = [&](const Gang::Worker& worker) { return ShareOne(worker.*pool, of.*pool); };
  return static_cast<uint32_t>(std::count_if(workers.begin(), workers.end(), shares));
}

// Sorts so that workers of one machine are neighbours, whatever their containers call their hosts; machines are in the
// order of their first hosts.
void SortByPlace(std::vector<Gang::Worker>& workers) {
  std::map<std::string, std::string> first_hosts;
  const auto machine_of = [](const Gang::Worker& worker) {
    return worker.machine.empty() ? worker.host : worker.machine;
  };
  for (const Gang::Worker& worker : workers) {
    std::string& first = first_hosts.try_emplace(machine_of(worker), worker.host).first->second;
    first = std::min(first, worker.host);
  }
  const auto place = [&](const Gang::Worker& worker) {
    const std::string machine = machine_of(worker);
    return std::make_tuple(first_hosts.at(machine), machine, worker.host, worker.device, worker.device_id);
  };
  std::sort(workers.begin(), workers.end(),
            [&](const Gang::Worker& a, const Gang::Worker& b) { return place(a) < place(b); });
}

}  // namespace

Gang::Gang(GangOptions options) : options_(std::move(options)), config_(options_.config) {}

uint32_t Gang::num_ranks() const { return NumRanks(mesh()); }

bool Gang::serves() const {
  return begun_ && std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.ready; });
}

const Gang::Worker* Gang::Find(SessionId session) const {
  const auto it =
      std::find_if(workers_.begin(), workers_.end(), [&](const Worker& worker) { return worker.session == session; });
  return it == workers_.end() ? nullptr : &*it;
}

Gang::Worker* Gang::Find(SessionId session) { return const_cast<Worker*>(std::as_const(*this).Find(session)); }

uint32_t Gang::RankOf(SessionId session) const {
  const Worker* worker = Find(session);
  CHECK(begun_ && worker != nullptr) << session;
  return static_cast<uint32_t>(worker - workers_.data());
}

const Gang::Worker& Gang::worker(uint32_t rank) const {
  CHECK(begun_);
  return workers_.at(rank);
}

std::optional<size_t> Gang::KernelsOff() const {
  std::optional<size_t> most;
  for (const Worker& worker : workers_) {
    if (!worker.device_name.empty()) most = std::max(most.value_or(0), worker.kernels_off.size());
  }
  return most;
}

std::string Gang::TextOf(SessionId session) const {
  const Worker* worker = Find(session);
  CHECK(worker != nullptr) << session;
  const std::string rank = begun_ && num_ranks() > 1 ? absl::StrCat("rank ", RankOf(session), ", ") : "";
  return absl::StrCat(rank, "worker ", worker->incarnation, " (pid ", worker->pid, " on ", worker->host, ")");
}

// Whether a worker has a place among those that are there.
absl::Status Gang::CheckFits(const Worker& worker) const {
  for (const Worker& other : workers_) {
    if (HaveOneDevice(other, worker)) {
      return absl::FailedPreconditionError(absl::StrCat(PlaceText(worker), " has a worker already, ", other.incarnation,
                                                        " (pid ", other.pid,
                                                        "): give each worker of a host a --device of its own"));
    }
    // It may try again: files are replaced host by host, and the other worker may be the one to be replaced next.
    if (other.build_id != worker.build_id) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the ranks of a mesh run one build of stemma-worker: this one, ", PlaceText(worker), ", has ",
          BuildText(worker), ", another, ", PlaceText(other), ", has ", BuildText(other), ": install the same one"));
    }
    if (other.device.kind != worker.device.kind) {
      return absl::InvalidArgumentError(absl::StrCat("the ranks of a mesh have devices of one kind: this worker has ",
                                                     PlaceText(worker), ", another ", PlaceText(other)));
    }
    if (other.host != worker.host && !(OthersReach(worker) && OthersReach(other))) {
      return absl::InvalidArgumentError(
          absl::StrCat("workers of several hosts have to reach each other: give the one on ",
                       PlaceText(OthersReach(worker) ? other : worker), " its --address, no loopback one"));
    }
  }
  return absl::OkStatus();
}

absl::Status Gang::Join(absl::Time now, SessionId session, const internal::v1::Register& message) {
  // It may try again: an upgrade replaces the one before the other.
  if (message.version() != options_.worker_version) {
    return absl::FailedPreconditionError(absl::StrCat("the worker is version \"", WorkerText(message.version()),
                                                      "\", the server \"", options_.worker_version,
                                                      "\": install the same one"));
  }
  Worker worker = WorkerOf(session, message);
  RETURN_IF_ERROR(full() ? absl::FailedPreconditionError(
                               num_ranks() == 1 ? "another worker is connected"
                                                : absl::StrCat("all ", num_ranks(), " ranks of the mesh have a worker"))
                         : CheckFits(worker));
  workers_.push_back(std::move(worker));
  next_look_ = std::min(next_look_, now + kLookEvery);
  return absl::OkStatus();
}

// Divides for the smallest share; what is wrong is said of every rank of which it is.
absl::StatusOr<v1::RunConfig> Gang::Divide() const {
  std::vector<WorkerMemory> shares;
  std::vector<std::string> problems;
  absl::Status first;
  for (const Worker& worker : workers_) {
    shares.push_back(ShareOf(worker.memory, Sharing(workers_, worker, &Worker::memory_pool)));
    const absl::Status status = DivideMemory(options_.model, shares.back(), options_.config).status();
    if (status.ok()) continue;
    first.Update(status);
    problems.push_back(num_ranks() == 1 ? std::string(status.message())
                                        : absl::StrCat(PlaceText(worker), ": ", status.message()));
  }
  if (!problems.empty()) return absl::Status(first.code(), absl::StrJoin(problems, "; "));
  return DivideMemory(options_.model, SmallestOf(shares), options_.config);
}

absl::StatusOr<internal::v1::Configure> Gang::Begin(absl::Time now, const WeightsBase& base) {
  CHECK(full() && !begun_);
  SortByPlace(workers_);
  ASSIGN_OR_RETURN(divided_, Divide());
  begun_ = true;
  base_ = base;
  store_.clear();
  ++generation_;
  for (Worker& worker : workers_) worker.phase = kLoadingPhase;
  loading_.emplace("loading the model", LoadSeconds(options_.model, RunDtypeOf(options_.config.dtype())),
                   options_.stalled_after);
  next_look_ = now + kLookEvery;
  return ConfigureOf(0);
}

internal::v1::Configure Gang::ConfigureOf(uint32_t rank) const {
  const Worker& of = worker(rank);
  internal::v1::Configure configure;
  configure.set_epoch(options_.epoch);
  configure.set_generation(generation_);
  *configure.mutable_config() = divided_;
  if (divided_.threads() == 0) {
    configure.mutable_config()->set_threads(ThreadsOf(of.cores, Sharing(workers_, of, &Worker::core_pool)));
  }
  configure.set_data_directory(options_.data_directory);
  configure.set_step(base_.step);
  configure.set_checkpoint(base_.checkpoint);
  configure.set_rank(rank);
  configure.set_store(store_);
  configure.set_ranks_of_host(Sharing(workers_, of, &Worker::memory_pool));
  return configure;
}

absl::StatusOr<std::vector<internal::v1::Configure>> Gang::OpenStore(SessionId session, const std::string& address) {
  if (!begun_ || num_ranks() == 1 || RankOf(session) != 0 || !store_.empty()) {
    return absl::InvalidArgumentError("a store that was not to be opened");
  }
  store_ = address;
  std::vector<internal::v1::Configure> configures;
  for (uint32_t rank = 1; rank < num_ranks(); ++rank) configures.push_back(ConfigureOf(rank));
  return configures;
}

absl::Status Gang::BecomeReady(SessionId session, const internal::v1::Ready& message) {
  Worker* worker = Find(session);
  CHECK(worker != nullptr) << session;
  if (worker->ready) return absl::InvalidArgumentError("a second Ready in one session");
  if (!begun_ || (num_ranks() > 1 && store_.empty())) {
    return absl::InvalidArgumentError("a Ready before it was told what to load");
  }
  RETURN_IF_ERROR(CheckLinksOfMesh(mesh(), message.links()));
  RETURN_IF_ERROR(CheckConfigOfWorker(TextOf(session), options_.model, message));
  const LoadedModel loaded = {message.model_digest(), message.model_files()};
  for (const Worker& other : workers_) {
    if (other.ready) RETURN_IF_ERROR(CheckSameModel(TextOf(session), loaded, TextOf(other.session), other.model));
  }
  worker->ready = true;
  worker->phase = "idle";
  worker->model = loaded;
  worker->threads = message.config().threads();
  worker->device_name = WorkerText(message.device_name());
  worker->kernels_off = KernelsOffOf(message);
  MergeLinks(message.links(), links_);
  if (serves()) Serve();
  return absl::OkStatus();
}

void Gang::Serve() {
  loading_.reset();
  ever_served_ = true;
  missing_since_ = absl::InfiniteFuture();
  config_ = divided_;
  const auto fewer = [](const Worker& a, const Worker& b) { return a.threads < b.threads; };
  config_.set_threads(std::min_element(workers_.begin(), workers_.end(), fewer)->threads);
}

void Gang::MissFrom(absl::Time now) {
  if (missing_since_ == absl::InfiniteFuture()) missing_since_ = now;
}

void Gang::Leave(absl::Time now, SessionId session) {
  CHECK(!begun_);
  std::erase_if(workers_, [&](const Worker& worker) { return worker.session == session; });
  MissFrom(now);
}

void Gang::Disband(absl::Time now) {
  workers_.clear();
  links_.clear();
  begun_ = false;
  loading_.reset();
  MissFrom(now);
}

internal::v1::StepKey Gang::KeyOf(uint32_t rank) const {
  internal::v1::StepKey key;
  key.set_epoch(options_.epoch);
  key.set_incarnation(worker(rank).incarnation);
  key.set_generation(generation_);
  return key;
}

absl::Duration Gang::Pass(absl::Time now, absl::Time handled_at) {
  const absl::Duration passed = counted_.Until(now, handled_at);
  next_look_ = workers_.empty() ? absl::InfiniteFuture() : std::min(next_look_, now + kLookEvery);
  if (workers_.empty()) return absl::ZeroDuration();
  for (Worker& worker : workers_) worker.silent_for += passed;
  if (loading_) loading_->Pass(passed);
  return passed;
}

void Gang::Heard(SessionId session) { Find(session)->silent_for = absl::ZeroDuration(); }

void Gang::Heard(SessionId session, const internal::v1::Heartbeat& heartbeat) {
  Worker* worker = Find(session);
  worker->progress = heartbeat.progress();
  if (worker->ready) worker->phase = WorkerText(heartbeat.phase());
}

uint64_t Gang::progress() const {
  uint64_t sum = 0;
  for (const Worker& worker : workers_) sum += worker.progress;
  return sum;
}

std::string Gang::PhasesText() const {
  if (num_ranks() == 1) return workers_.empty() ? "" : workers_.front().phase;
  std::vector<std::string> phases;
  for (const Worker& worker : workers_) phases.push_back(absl::StrCat("rank ", phases.size(), " ", worker.phase));
  return absl::StrJoin(phases, ", ");
}

void Gang::Look(absl::Time now) {
  if (now >= next_look_) next_look_ = now + kLookEvery;
}

std::optional<Gang::Problem> Gang::FindProblem() const {
  for (const Worker& worker : workers_) {
    if (worker.silent_for < options_.lost_after) continue;
    return Problem{worker.session, absl::StrCat("no heartbeat for ", absl::FormatDuration(options_.lost_after))};
  }
  if (!loading_) return std::nullopt;
  const std::string reason = loading_->Problem();
  if (reason.empty()) return std::nullopt;
  const auto loads = std::find_if(workers_.begin(), workers_.end(), [](const Worker& worker) { return !worker.ready; });
  return Problem{loads->session, reason};
}

std::string RatedDevice(const Gang::Worker& worker) {
  const std::string& hardware = worker.device_name;
  return hardware.empty() ? worker.device.kind : absl::StrCat(worker.device.kind, " ", hardware);
}

}  // namespace stemma::server
