// How the daemons end, for `stemma local` and whatever else looks after them (docs/operate.md).
#pragma once

namespace stemma {

inline constexpr int kFaultExit = 1;          // or a second signal: start it again
inline constexpr int kConfigurationExit = 2;  // options, files, folders or memory that someone has to change
inline constexpr int kNoRoomExit = 94;  // the disk of --data has no room for the journal: start it again once it has
inline constexpr int kDoNotRestartExit = 93;  // what is kept is damaged: starting again does not help

}  // namespace stemma
