// DeviceClock: when a device reached points of its queue of work.
//
// A device runs behind the thread that gives it work, so that the host's clock between two calls says nothing of what
// the calls cost. Called by worker/engine on the engine thread. Marks are read when the device has passed them; At
// waits until it has. On a CPU, work is done when its call returns, and a mark is the host's clock.
#pragma once

#include <cstdint>
#include <memory>

namespace stemma::worker {

class DeviceClock {
 public:
  virtual ~DeviceClock() = default;

  // Marks the point that the calling thread has come to. Marks are numbered from 0.
  virtual int64_t Mark() = 0;
  // Seconds of RealClock() at which the device passed that mark; may wait for it.
  virtual double At(int64_t mark) = 0;
  // Forgets all marks.
  virtual void Clear() = 0;
};

std::unique_ptr<DeviceClock> MakeHostClock();

}  // namespace stemma::worker
