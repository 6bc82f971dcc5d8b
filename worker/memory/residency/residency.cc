#include "worker/memory/residency/residency.h"

#include <glog/logging.h>

#include <algorithm>

namespace stemma::worker {

std::string_view PlaceName(Place place) {
  switch (place) {
    case Place::kDevice:
      return "on the device";
    case Place::kLeaving:
      return "leaving";
    case Place::kHost:
      return "in host memory";
    case Place::kArriving:
      return "arriving";
    case Place::kConsumed:
      return "consumed";
  }
  LOG(FATAL) << "no place " << static_cast<int>(place);
}

Residency::Residency(const ResidencyOptions& options) : options_(options) {
  CHECK_GE(options.headroom_bytes, 0);
  CHECK_GE(options.host_bytes, 0);
}

Actions Residency::Produced(int64_t entry, int64_t bytes) {
  CheckNothingOwed();
  CHECK(producing_) << "entry " << entry << " is produced after the end of producing";
  CHECK_GE(bytes, 0) << "entry " << entry;
  CHECK(position_.emplace(entry, entries_.size()).second) << "entry " << entry << " is produced twice";
  entries_.push_back({.index = entry, .bytes = bytes});
  end_ = entries_.size();
  AddDeviceBytes(bytes);
  staged_bytes_ += bytes;
  Actions actions;
  Continue(actions);
  return actions;
}

Actions Residency::CopyOutDone(int64_t entry) {
  CheckNothingOwed();
  Entry& e = At(entry);
  CHECK(e.place == Place::kLeaving) << "a copy out of entry " << entry << " ended, which is " << PlaceName(e.place);
  EndCopyOut(e);
  stats_.bytes_out += e.bytes;
  Actions actions;
  if (consuming_ && staged_bytes_ <= options_.headroom_bytes) {
    Stay(e, actions);  // it would be fetched back at once
  } else {
    e.place = Place::kHost;
    FreeDevice(e, actions);
  }
  Continue(actions);
  return actions;
}

Actions Residency::CopyOutRefused(int64_t entry) {
  Entry& e = At(entry);
  CHECK(e.place == Place::kLeaving) << "a copy out of entry " << entry << " is refused, which is "
                                    << PlaceName(e.place);
  EndCopyOut(e);
  AddHostBytes(-e.bytes);
  e.place = Place::kDevice;
  Keep(e);
  Actions actions;
  Continue(actions);
  return actions;
}

Actions Residency::CopyInDone(int64_t entry) {
  CheckNothingOwed();
  Entry& e = At(entry);
  CHECK(e.place == Place::kArriving) << "a copy in of entry " << entry << " ended, which is " << PlaceName(e.place);
  e.place = Place::kDevice;
  stats_.bytes_in += e.bytes;
  Actions actions;
  FreeHost(e, actions);
  Continue(actions);
  return actions;
}

void Residency::ProducingEnded() {
  CheckNothingOwed();
  producing_ = false;
}

Actions Residency::ConsumeSoon() {
  CheckNothingOwed();
  CHECK(!producing_) << "prefetch is asked for while entries are produced";
  consuming_ = true;
  Actions actions;
  Continue(actions);
  return actions;
}

Actions Residency::Need(int64_t entry) {
  CheckNothingOwed();
  Entry& e = At(entry);
  CHECK(!e.needed) << "entry " << entry << " is needed twice; it is " << PlaceName(e.place);
  e.needed = true;
  Actions actions;
  if (e.place == Place::kLeaving) {
    actions.push_back({ActionKind::kCancelCopyOut, entry});
    EndCopyOut(e);
    Stay(e, actions);
  } else if (e.place == Place::kHost) {
    ++stats_.demand_loads;
    StartCopyIn(e, actions);
  } else if (e.place == Place::kArriving) {
    ++stats_.waits;
  }
  Continue(actions);
  if (e.place == Place::kArriving) actions.push_back({ActionKind::kWaitFor, entry});
  return actions;
}

Actions Residency::Consumed(int64_t entry) {
  CheckNothingOwed();
  Entry& e = At(entry);
  CHECK(e.place == Place::kDevice) << "entry " << entry << " is read while it is " << PlaceName(e.place);
  CHECK(e.needed) << "entry " << entry << " is read, but nobody said that it is needed";
  e.place = Place::kConsumed;
  AddDeviceBytes(-e.bytes);
  if (!e.kept) staged_bytes_ -= e.bytes;
  while (end_ > 0 && entries_[end_ - 1].place == Place::kConsumed) --end_;
  if (end_ == 0) {
    CHECK_EQ(stats_.device_bytes, 0) << "all entries are consumed";
    CHECK_EQ(stats_.host_bytes, 0) << "all entries are consumed";
    CHECK_EQ(staged_bytes_, 0) << "all entries are consumed";
  }
  Actions actions;
  Continue(actions);
  return actions;
}

void Residency::DeviceFreed(int64_t entry) {
  Entry& e = At(entry);
  CHECK(e.owes_device_free) << "device memory of entry " << entry << " is freed while it is " << PlaceName(e.place);
  e.owes_device_free = false;
  --frees_owed_;
}

void Residency::HostFreed(int64_t entry) {
  Entry& e = At(entry);
  CHECK(e.owes_host_free) << "host memory of entry " << entry << " is freed while it is " << PlaceName(e.place);
  e.owes_host_free = false;
  --frees_owed_;
}

Place Residency::place(int64_t entry) const {
  const auto it = position_.find(entry);
  CHECK(it != position_.end()) << "entry " << entry << " was never produced";
  return entries_[it->second].place;
}

Residency::Entry& Residency::At(int64_t entry) {
  const auto it = position_.find(entry);
  CHECK(it != position_.end()) << "entry " << entry << " was never produced";
  return entries_[it->second];
}

void Residency::CheckNothingOwed() const { CHECK_EQ(frees_owed_, 0) << "frees that were ordered and not done"; }

void Residency::AddDeviceBytes(int64_t bytes) {
  stats_.device_bytes += bytes;
  CHECK_GE(stats_.device_bytes, 0);
  stats_.peak_device_bytes = std::max(stats_.peak_device_bytes, stats_.device_bytes);
}

void Residency::AddHostBytes(int64_t bytes) {
  stats_.host_bytes += bytes;
  CHECK_GE(stats_.host_bytes, 0);
  CHECK_LE(stats_.host_bytes, options_.host_bytes);
  stats_.peak_host_bytes = std::max(stats_.peak_host_bytes, stats_.host_bytes);
}

void Residency::EndCopyOut(const Entry& e) {
  --in_flight_out_;
  leaving_bytes_ -= e.bytes;
}

void Residency::Keep(Entry& e) {
  e.kept = true;
  staged_bytes_ -= e.bytes;
  ++stats_.kept;
  stats_.kept_bytes += e.bytes;
}

// Keeps on the device what has left in vain.
void Residency::Stay(Entry& e, Actions& actions) {
  e.place = Place::kDevice;
  FreeHost(e, actions);
}

void Residency::FreeDevice(Entry& e, Actions& actions) {
  actions.push_back({ActionKind::kFreeDevice, e.index});
  e.owes_device_free = true;
  ++frees_owed_;
  AddDeviceBytes(-e.bytes);
  staged_bytes_ -= e.bytes;
}

void Residency::FreeHost(Entry& e, Actions& actions) {
  actions.push_back({ActionKind::kFreeHost, e.index});
  e.owes_host_free = true;
  ++frees_owed_;
  AddHostBytes(-e.bytes);
}

void Residency::StartCopyIn(Entry& e, Actions& actions) {
  actions.push_back({ActionKind::kStartCopyIn, e.index});
  e.place = Place::kArriving;
  AddDeviceBytes(e.bytes);
  staged_bytes_ += e.bytes;
}

bool Residency::MayLeave(const Entry& e) const { return e.place == Place::kDevice && !e.needed && e.bytes > 0; }

void Residency::StartCopiesOut(Actions& actions) {
  for (; next_out_ < entries_.size(); ++next_out_) {
    Entry& e = entries_[next_out_];
    if (!MayLeave(e)) continue;
    if (in_flight_out_ == kCopiesOutMax) return;
    if (consuming_ && staged_bytes_ - leaving_bytes_ <= options_.headroom_bytes) return;
    if (stats_.host_bytes + e.bytes > options_.host_bytes) {
      Keep(e);
      continue;
    }
    actions.push_back({ActionKind::kStartCopyOut, e.index});
    e.place = Place::kLeaving;
    ++in_flight_out_;
    leaving_bytes_ += e.bytes;
    AddHostBytes(e.bytes);
  }
}

// Strictly in the order of consumption: a smaller entry never overtakes.
void Residency::Prefetch(Actions& actions) {
  if (!consuming_) return;
  for (size_t i = end_; i-- > 0;) {
    Entry& e = entries_[i];
    if (e.place != Place::kHost) continue;
    if (staged_bytes_ + e.bytes > options_.headroom_bytes) return;
    StartCopyIn(e, actions);
  }
}

void Residency::Continue(Actions& actions) {
  StartCopiesOut(actions);
  Prefetch(actions);
}

}  // namespace stemma::worker
