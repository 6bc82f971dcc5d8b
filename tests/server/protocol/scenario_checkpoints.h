// The disk of a scenario's checkpoints, and the words about them. scenario.h says what they mean.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/protocol/events.h"
#include "tests/server/protocol/scenario_plans.h"

namespace stemma::server {

class FakeCheckpoints {
 public:
  // Returns what an action of this kind leads to, in the order in which the disk ends them; empty where it leads to no
  // event.
  std::vector<Event> Execute(const Action& action);
  // Returns what a server finds at its start.
  std::vector<internal::v1::KnownCheckpoint> Found() const;
  void Damage(const std::string& name) { damaged_.insert(name); }
  // Carries out a line about the disk, and returns what it leads to. Nullopt: it is about something else.
  std::optional<std::vector<Event>> Tell(const Command& command);

 private:
  void AddCopy(const Command& command);
  CheckpointWrittenEvent Commit(const CommitCheckpointAction& action);
  CheckpointRemovedEvent Remove(const RemoveCheckpointAction& action);
  CheckpointReadEvent Read(const ReadCheckpointAction& action);
  std::vector<Event> EndReadings();
  std::vector<Event> EndHung();

  std::map<std::string, internal::v1::KnownCheckpoint> known_;
  std::map<std::string, std::string> client_states_;
  std::set<std::string> damaged_, foreign_;
  bool full_ = false;
  bool holds_ = false;  // what clients ask for is not read at once
  bool begun_ = false;  // and may not be dropped any more
  std::vector<ReadCheckpointAction> held_;
  bool hangs_ = false;  // what is to change something on the disk waits
  std::vector<Action> hung_;
  absl::Status refusal_;  // of folders and removals
};

// The client's call that a line is, if it is one about checkpoints, or about removing exports, or what that came to.
std::optional<Event> CheckpointCallOf(const std::string& name, const Command& command);

// The line of an action or reply about checkpoints; empty: it is none.
std::string CheckpointActionText(const Action& action);
std::string CheckpointReplyText(const Reply& reply);
std::string CheckpointRowText(const internal::v1::JournalRow& row);

}  // namespace stemma::server
