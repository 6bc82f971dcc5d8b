#include "common/base/logging.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/line_writer.h"
#include "common/base/mutex.h"
#include "common/base/printable.h"
#include "common/base/process.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"

namespace stemma {
namespace {

constexpr char kTimeFormat[] = "%Y-%m-%dT%H:%M:%E3SZ";
constexpr int64_t kNoRank = -1;
constexpr int kNoStderr = google::NUM_SEVERITIES;  // above every severity: glog itself writes nothing there

std::atomic<int64_t>& LogRank() {
  static std::atomic<int64_t> rank = kNoRank;
  return rank;
}

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

LogLevel LevelOf(google::LogSeverity severity) {
  if (severity == google::GLOG_INFO) return LogLevel::kInfo;
  return severity == google::GLOG_WARNING ? LogLevel::kWarning : LogLevel::kError;
}

// Writes to stderr; `line` is of LogLine. Never destroyed: threads log until the process ends.
void WriteLine(LogFormat format, std::string_view program, std::string_view line) {
  static LineWriter& writer = *new LineWriter(STDERR_FILENO);
  writer.Write(std::string(line) + "\n", [&](int64_t lines) {
    return absl::StrCat(
        LogLine(format, RealClock().Now(), LogLevel::kWarning, program,
                absl::StrCat(lines, " log lines were dropped: what reads them did not keep up, or the disk was full")),
        "\n");
  });
}

// A ring of the lines that were written last. Never destroyed: threads log until the process ends.
class LastLines {
 public:
  static LastLines& Get() {
    static LastLines& lines = *new LastLines;
    return lines;
  }
  void Add(std::string_view line) {
    MutexLock lock(&mutex_);
    lines_.emplace_back(line.substr(0, kKeptBytesOfLine));
    if (lines_.size() > kLastLines) lines_.pop_front();
  }
  std::string Text() {
    MutexLock lock(&mutex_);
    std::string text;
    for (const std::string& line : lines_) absl::StrAppend(&text, line, "\n");
    return text;
  }

 private:
  static constexpr size_t kKeptBytesOfLine = 4096;
  Mutex mutex_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

class StderrSink final : public google::LogSink {
 public:
  StderrSink(std::string program, LogFormat format) : program_(std::move(program)), format_(format) {}
  void send(google::LogSeverity severity, const char*, const char*, int, const google::LogMessageTime&,
            const char* message, size_t size) override {
    const int64_t rank = LogRank();
    const std::string line = LogLine(format_, RealClock().Now(), LevelOf(severity), program_, {message, size},
                                     rank == kNoRank ? std::nullopt : std::optional<uint32_t>(rank));
    LastLines::Get().Add(line);
    WriteLine(format_, program_, line);
  }

 private:
  const std::string program_;
  const LogFormat format_;
};

}  // namespace

std::map<std::string, LogFormat> LogFormats() { return {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}; }

std::map<std::string, LogLevel> LogLevels() {
  std::map<std::string, LogLevel> levels;
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    levels[LevelName(level)] = level;
  }
  return levels;
}

std::string LogLine(LogFormat format, absl::Time time, LogLevel level, std::string_view program,
                    std::string_view message, std::optional<uint32_t> rank) {
  const std::string stamp = absl::FormatTime(kTimeFormat, time, absl::UTCTimeZone());
  if (format == LogFormat::kText) {
    const std::string who = rank.has_value() ? absl::StrCat("rank ", *rank, ": ") : "";
    return absl::StrCat(stamp, " ", absl::AsciiStrToUpper(LevelName(level)), " ", who, Printable(message, " "));
  }
  nlohmann::ordered_json line = {{"time", stamp}, {"level", LevelName(level)}, {"program", program}, {"pid", getpid()}};
  if (rank.has_value()) line["rank"] = *rank;
  line["message"] = message;
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void StartLogging(std::string_view program, const LogOptions& options) {
  static const std::string name(program);  // glog keeps the pointer
  google::InitGoogleLogging(name.c_str());
  FLAGS_logtostderr = false;
  FLAGS_stderrthreshold = kNoStderr;
  FLAGS_minloglevel = std::max(0, static_cast<int>(options.level) - 1);
  FLAGS_v = options.level == LogLevel::kDebug ? 1 : 0;
  for (google::LogSeverity severity = 0; severity < google::NUM_SEVERITIES; ++severity) {
    google::SetLogDestination(severity, "");  // no log files
  }
  IgnorePipeSignal();
  google::AddLogSink(new StderrSink(name, options.format));  // as long as the process: threads log until its end
}

void SetLogRank(uint32_t rank) { LogRank() = rank; }

std::string LastLogLines() { return LastLines::Get().Text(); }

void Say(std::string_view program, const LogOptions& options, LogLevel level, std::string_view text) {
  if (level < options.level) return;
  if (options.format == LogFormat::kText) {
    WriteLine(options.format, program, absl::StrCat(std::string(program), ": ", Printable(text, "\n")));
  } else {
    WriteLine(options.format, program, LogLine(options.format, RealClock().Now(), level, program, text));
  }
}

}  // namespace stemma
