// Log lines of the daemons on stderr: a time, a level and the text, as a line of words or as a JSON object. What glog's
// LOG and CHECK say comes out so; no line claims a source position, as most texts are made elsewhere than they are
// logged. What reads them may stop or go away: lines are dropped then, and nothing waits for it (line_writer.h).
//
//   2026-01-31T08:15:30.123Z INFO worker 00ff is ready
//   {"time":"2026-01-31T08:15:30.123Z","level":"info","program":"stemma-server","pid":12,"message":"worker 00ff is
//   ready"}
//
// Once a worker knows its rank of several, its lines say it: several often share one stderr.
//
//   2026-01-31T08:15:31.456Z INFO rank 2: has met the other ranks of 4
//   {"time":"2026-01-31T08:15:31.456Z","level":"info","program":"stemma-worker","pid":34,"rank":2,"message":"has met
//   the other ranks of 4"}
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace stemma {

enum class LogFormat { kText, kJson };
enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Their words on the command line.
std::map<std::string, LogFormat> LogFormats();
std::map<std::string, LogLevel> LogLevels();

struct LogOptions {
  LogFormat format = LogFormat::kText;
  LogLevel level = LogLevel::kInfo;  // the least that is written; a CHECK that fails always is
};

// Formats a line, without its end. Line ends in the message become spaces in text and \n in JSON; other control
// characters \x1b and \u009b, or as JSON has them. `rank`: of the worker that speaks, where there are several.
std::string LogLine(LogFormat format, absl::Time time, LogLevel level, std::string_view program,
                    std::string_view message, std::optional<uint32_t> rank = std::nullopt);

// Sends what glog gets to stderr in that form, from now until the process ends, which SIGPIPE ends no more. Call once,
// early in main.
void StartLogging(std::string_view program, const LogOptions& options);

// Has the lines of this process name the rank that it is, from now on. Thread-safe.
void SetLogRank(uint32_t rank);

// Returns the newest kLastLines lines of the log, as they were written, for who looks for the reason of a loss.
// Thread-safe.
inline constexpr size_t kLastLines = 200;
std::string LastLogLines();

// Tells whoever started the program, where there may be no log: "stemma-server: text" on stderr, or a JSON line.
void Say(std::string_view program, const LogOptions& options, LogLevel level, std::string_view text);

}  // namespace stemma
