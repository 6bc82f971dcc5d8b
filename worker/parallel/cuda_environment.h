// What this process tells CUDA, NCCL and PyTorch's group of it, which hear by environment variables alone. An
// operator's choice stands: nothing is overwritten.
//
// Writes to the environment, as NCCL's set-up does: the main thread before it opens its device, and the engine's thread
// before the first step.
#pragma once

#include <string>

namespace stemma::worker {

// All that is ever told. A process that starts itself anew clears what no operator has set (worker/main/worker_run.cc):
// it may be another build, or have another address.
inline constexpr const char* kToldVariables[] = {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING",
                                                 "NCCL_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                                                 "TORCH_NCCL_RETHROW_CUDA_ERRORS"};

// Asks for as many queues of the device as there may be. Streams beyond their number, which is 8 else, share queues and
// wait for each other there: the compute stream, those of copies and each communicator's are more. And for all kernels
// to be loaded at the start: one that is loaded when it is first called may wait until the device is idle, while a
// pipeline's message to a stage that waits in the same way is still on it, and neither would go on. REQUIRES: CUDA has
// not been called.
void TellCuda();

// Says by which interface NCCL reaches the other ranks, that of `own_host`; and that errors end the session and not the
// process. REQUIRES: there is no NCCL group yet.
//
// PyTorch's watchdog looks at what is in flight every 100 ms, and by default ends the process by SIGABRT when the
// device has failed, or a minute after NCCL says that a peer has gone. The host, which waits for the device, would hear
// of its failure in the same moment: it says why, leaves evidence, and the process starts itself anew. So the watchdog
// only logs. What hangs ends all the same: a peer that ends closes its stream to the server, and a peer that stands
// still outlives the job's deadline; either way the server ends the generation and closes this process's stream, whose
// thread waits for no device, and leaves the engine's where it hangs: the process starts itself anew, which aborts all.
// Were the server silent, too, the watchdog's monitor would end the process, after TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC (8
// minutes) once or twice, for it takes a failure that was logged for a hang.
void TellNccl(const std::string& own_host);

}  // namespace stemma::worker
