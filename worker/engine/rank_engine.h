// Makes the engine of stemma-worker: meets the other ranks of the mesh, measures the links to them, makes the device's
// backend, then loads the model. The process's ranks and its device come together here and nowhere else.
#pragma once

#include <cstdint>
#include <memory>

#include "worker/backend/device.h"
#include "worker/engine/engine.h"
#include "worker/parallel/rendezvous.h"

namespace stemma::worker {

// Makes an engine on a device that outlives it; with the device given, an EngineFactory. The ranks meet before any of
// them loads, so that one that cannot be reached is found early.
absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const Device& device, const internal::v1::Configure& configure,
                                                     const WorkerIdentity& identity, const TellStore& tell,
                                                     const RendezvousTimeouts& timeouts = {});

// Returns how many threads compute where nobody says how many: one for each core that LibTorch finds, and no
// more than the time that the process's control groups leave it is worth.
uint32_t ComputeCores();

// Returns the control group whose time those are; empty: they are the machine's.
std::string ComputeCoreGroup();

}  // namespace stemma::worker
