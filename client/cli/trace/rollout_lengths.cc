// Reads the lengths of a rollouts.jsonl, or of a trace: LengthsOf and ReadLengths of reuse_bound.h.
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/output/command_status.h"
#include "client/cli/trace/reuse_bound.h"
#include "client/cli/trace/trace_file.h"
#include "common/base/arrays.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

using nlohmann::json;

constexpr int64_t kLengthMax = (int64_t{1} << 31) - 1;
constexpr size_t kLineBytesMax = size_t{64} << 20;  // parsed, a line takes many times its bytes

class RolloutFile {
 public:
  explicit RolloutFile(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<std::vector<LengthGroup>> Read() {
    RETURN_IF_ERROR(ResolvePath(path_).status());
    ASSIGN_OR_RETURN(std::ifstream stream, Open());
    std::string text;
    while (true) {
      ASSIGN_OR_RETURN(const bool found, NextLine(stream, text));
      if (!found) break;
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      ASSIGN_OR_RETURN(const json line, ParseLine(text));
      if (groups_.empty() && line.contains("schema")) return ReadTrace();
      RETURN_IF_ERROR(Add(line));
    }
    if (stream.bad()) return absl::InvalidArgumentError(absl::StrCat(path_, ": cannot be read to its end"));
    if (groups_.empty()) return absl::InvalidArgumentError(absl::StrCat(path_, ": holds no rollout"));
    return std::move(groups_);
  }

 private:
  struct Known {
    size_t index = 0;
    int64_t line = 0;
    json prompt;
  };

  // Pipes are read as well, but nothing comes of a folder.
  absl::StatusOr<std::ifstream> Open() const {
    std::ifstream stream(path_);
    if (!stream.is_open()) return ErrnoStatus("open", path_, errno);
    std::error_code ignored;  // it is open
    if (std::filesystem::is_directory(path_, ignored)) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": not a regular file"));
    }
    return stream;
  }

  // Reads the next line, without its end, to `text`; false: there is none. A device may have no end of a line.
  absl::StatusOr<bool> NextLine(std::ifstream& stream, std::string& text) {
    constexpr int kEnd = std::ifstream::traits_type::eof();
    text.clear();
    ++line_;
    int next = stream.get();
    const bool found = next != kEnd;
    for (; next != kEnd && next != '\n'; next = stream.get()) {
      if (text.size() == kLineBytesMax) return Error(absl::StrCat("is longer than ", kLineBytesMax, " bytes"));
      text.push_back(static_cast<char>(next));
    }
    return found;
  }

  absl::Status Error(const std::string& message) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ":", line_, ": ", message));
  }

  absl::StatusOr<json> ParseLine(const std::string& text) const {
    absl::StatusOr<json> line = ParseJson(text);
    if (!line.ok()) return Error(absl::StrCat("not JSON: ", line.status().message()));
    if (!line->is_object()) return Error(absl::StrCat("must be a JSON object, is ", JsonTypeName(*line)));
    return line;
  }

  absl::StatusOr<std::vector<LengthGroup>> ReadTrace() const {
    ASSIGN_OR_RETURN(TraceFile trace, TraceFile::Open(path_));
    std::vector<LengthGroup> groups;
    for (int64_t index = 0; index < trace.num_requests(); ++index) {
      ASSIGN_OR_RETURN(const TraceLine line, trace.Read(index));
      for (const v1::PromptGroup& group : line.request.groups) {
        absl::StatusOr<LengthGroup> lengths = LengthsOf(group);
        if (!lengths.ok()) {
          return UsageError(absl::StrCat(path_, ":", line.line, ": ", lengths.status().message()));
        }
        groups.push_back(*std::move(lengths));
      }
    }
    return groups;
  }

  absl::StatusOr<int64_t> Length(const json& value, const char* what, int64_t least) const {
    int64_t length = -1;
    if (value.is_array()) length = static_cast<int64_t>(value.size());
    if (value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{kLengthMax})) {
      length = value.get<int64_t>();
    }
    if (length >= least && length <= kLengthMax) return length;
    return Error(
        absl::StrCat(what, " is ", JsonExcerpt(value), ": must be a length from ", least, " up, or a list of tokens"));
  }

  absl::StatusOr<std::vector<int64_t>> Responses(const json& line) const {
    const bool one = line.contains("response");
    if (one == line.contains("responses")) {
      return Error("must hold either \"response\" (one rollout) or \"responses\" (a list)");
    }
    if (!one && !line["responses"].is_array())
      return Error("responses must be a list of lengths or of lists of tokens");
    std::vector<int64_t> lengths;
    for (const json& value : one ? json::array({line["response"]}) : line["responses"]) {
      ASSIGN_OR_RETURN(const int64_t length, Length(value, "response", 0));
      lengths.push_back(length);
    }
    return lengths;
  }

  absl::Status Add(const json& line) {
    ASSIGN_OR_RETURN(std::vector<int64_t> responses, Responses(line));
    const json group = line.value("group", json());
    if (group.is_null() && line.contains("response")) {
      return Error("group is missing: rollouts of one group share its prompt");
    }
    if (!group.is_null() && !group.is_string() && !group.is_number_integer()) {
      return Error(absl::StrCat("group is ", JsonExcerpt(group), ", must be a text or a whole number"));
    }
    const auto known = group.is_null() ? known_.end() : known_.find(group.dump());
    if (known != known_.end()) {
      if (line.contains("prompt") && line["prompt"] != known->second.prompt) {
        return Error(
            absl::StrCat("group ", JsonExcerpt(group), " has another prompt than on line ", known->second.line));
      }
      std::vector<int64_t>& all = groups_[known->second.index].responses;
      all.insert(all.end(), responses.begin(), responses.end());
      return absl::OkStatus();
    }
    if (!line.contains("prompt")) return Error("prompt is missing: a length or a list of tokens");
    ASSIGN_OR_RETURN(const int64_t prompt, Length(line["prompt"], "prompt", 1));
    if (!group.is_null()) known_[group.dump()] = {groups_.size(), line_, line["prompt"]};
    groups_.push_back({prompt, std::move(responses)});
    return absl::OkStatus();
  }

  const std::string path_;
  int64_t line_ = 0;
  std::vector<LengthGroup> groups_;
  std::map<std::string, Known> known_;  // by the group's JSON: "1" and 1 are two
};

}  // namespace

absl::StatusOr<LengthGroup> LengthsOf(const v1::PromptGroup& group) {
  LengthGroup lengths = {.prompt = TokenArray(group.prompt_tokens()).size(), .responses = {}};
  if (lengths.prompt == 0)
    return absl::InvalidArgumentError(absl::StrCat("group ", group.uid(), " has an empty prompt"));
  for (const v1::Rollout& rollout : group.rollouts()) {
    lengths.responses.push_back(TokenArray(rollout.response_tokens()).size());
  }
  return lengths;
}

absl::StatusOr<std::vector<LengthGroup>> ReadLengths(const std::string& path) {
  absl::StatusOr<std::vector<LengthGroup>> groups = RolloutFile(path).Read();
  if (!groups.ok()) return UsageError(std::string(groups.status().message()));
  return groups;
}

}  // namespace stemma::cli
