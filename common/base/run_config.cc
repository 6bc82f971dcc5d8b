#include "common/base/run_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/byte_size.h"
#include "common/base/dtype_names.h"
#include "common/base/file.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "yaml-cpp/yaml.h"

namespace stemma {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr uint64_t kMaxFileBytes = 1 << 20;
constexpr uint64_t kGrpcBytesMax = (uint64_t{1} << 31) - 1;  // gRPC's limit is an int

int LineOf(const YAML::Node& node) { return node.Mark().line + 1; }

// Walks a YAML mapping beside the message of the same fields.
class Reader {
 public:
  explicit Reader(ParsedRunConfig& parsed) : parsed_(parsed) {}

  void Read(const YAML::Node& node, const std::string& prefix, Message& message) {
    if (!node.IsMap()) return Report(prefix.empty() ? "(file)" : prefix, LineOf(node), "must be a mapping of keys");
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "(key)";
      const std::string key = prefix.empty() ? name : absl::StrCat(prefix, ".", name);
      const int line = LineOf(entry.first);
      const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
      if (field == nullptr) {
        Report(key, line, absl::StrCat("unknown key; known: ", Names(*message.GetDescriptor())));
      } else if (!seen.insert(name).second) {
        Report(key, line, "appears twice");
      } else {
        parsed_.line_of_key[key] = line;
        ReadField(entry.second, key, *field, message);
      }
    }
  }

 private:
  void Report(const std::string& key, int line, std::string message) {
    parsed_.problems.push_back({key, line, std::move(message)});
  }

  static std::string Names(const Descriptor& descriptor) {
    std::vector<std::string> names;
    for (int i = 0; i < descriptor.field_count(); ++i) names.push_back(descriptor.field(i)->name());
    return absl::StrJoin(names, ", ");
  }

  void ReadField(const YAML::Node& node, const std::string& key, const FieldDescriptor& field, Message& message) {
    const auto& reflection = *message.GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return Read(node, key, *reflection.MutableMessage(&message, &field));
    }
    const int line = parsed_.line_of_key[key];
    if (!node.IsScalar()) return Report(key, line, "must be one value");
    const std::string& text = node.Scalar();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection.SetString(&message, &field, text);
      case FieldDescriptor::CPPTYPE_ENUM:
        return ReadEnum(text, key, field, message);
      case FieldDescriptor::CPPTYPE_BOOL:
        if (text != "true" && text != "false") return Report(key, line, "is neither true nor false");
        return reflection.SetBool(&message, &field, text == "true");
      case FieldDescriptor::CPPTYPE_UINT64:
      case FieldDescriptor::CPPTYPE_UINT32: {
        const bool narrow = field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32;
        if (absl::EndsWith(field.name(), "_bytes")) return ReadBytes(text, key, field, message);
        const std::optional<uint64_t> value = ReadUnsigned(text, narrow ? UINT32_MAX : UINT64_MAX);
        if (!value) return Report(key, line, absl::StrCat("\"", text, "\" is not a whole number from 0 up"));
        if (narrow) return reflection.SetUInt32(&message, &field, static_cast<uint32_t>(*value));
        return reflection.SetUInt64(&message, &field, *value);
      }
      default:
        LOG(FATAL) << "run.yaml has no rule for " << field.full_name();
    }
  }

  void ReadBytes(const std::string& text, const std::string& key, const FieldDescriptor& field, Message& message) {
    const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
    if (!bytes.ok()) return Report(key, parsed_.line_of_key[key], std::string(bytes.status().message()));
    message.GetReflection()->SetUInt64(&message, &field, *bytes);
  }

  static std::optional<uint64_t> ReadUnsigned(const std::string& text, uint64_t max) {
    uint64_t value;
    const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
    if (!digits || !absl::SimpleAtoi(text, &value) || value > max) return std::nullopt;
    return value;
  }

  void ReadEnum(const std::string& text, const std::string& key, const FieldDescriptor& field, Message& message) {
    const EnumDescriptor& words = *field.enum_type();
    std::vector<std::string> known;
    for (int i = 0; i < words.value_count(); ++i) {
      if (words.value(i)->number() == 0) continue;
      known.push_back(RunConfigWord(*words.value(i)));
      if (text == known.back()) return message.GetReflection()->SetEnum(&message, &field, words.value(i));
    }
    Report(key, parsed_.line_of_key[key], absl::StrCat("\"", text, "\" is not one of ", absl::StrJoin(known, ", ")));
  }

  ParsedRunConfig& parsed_;
};

struct Range {
  const char* key;
  uint64_t value, min, max;
};

// Whether a problem of this key is known already: its value is then not the file's.
bool IsReported(const ParsedRunConfig& parsed, std::string_view key) {
  return std::any_of(parsed.problems.begin(), parsed.problems.end(),
                     [key](const RunConfigProblem& problem) { return problem.key == key; });
}

std::vector<Range> Ranges(const v1::RunConfig& config) {
  const v1::Checkpoints& checkpoints = config.checkpoints();
  const v1::Limits& limits = config.limits();
  return {{"head_chunk_tokens", config.head_chunk_tokens(), 0, 1 << 20},
          {"threads", config.threads(), 0, 4096},
          {"mesh.dp", config.mesh().dp(), 1, kRanksMax},
          {"mesh.pp", config.mesh().pp(), 1, kRanksMax},
          {"mesh.cp", config.mesh().cp(), 1, kRanksMax},
          {"mesh.tp", config.mesh().tp(), 1, kRanksMax},
          {"mesh.ep", config.mesh().ep(), 1, kRanksMax},
          {"prefix_block_rows", config.prefix_block_rows(), 0, 1 << 24},
          {"memory_budget_bytes", config.memory_budget_bytes(), 0, uint64_t{1} << 50},
          {"host_memory_bytes", config.host_memory_bytes(), 0, uint64_t{1} << 50},
          {"checkpoints.every_steps", checkpoints.every_steps(), 0, uint64_t{1} << 40},
          {"checkpoints.every_minutes", checkpoints.every_minutes(), 1, 365 * 24 * 60},
          {"checkpoints.keep", checkpoints.keep(), 2, 1 << 16},
          {"limits.message_bytes", limits.message_bytes(), 1 << 16, kGrpcBytesMax},
          {"limits.groups", limits.groups(), 1, UINT32_MAX},
          {"limits.rollouts", limits.rollouts(), 1, UINT32_MAX},
          {"limits.tokens", limits.tokens(), 1, uint64_t{1} << 40},
          {"limits.string_bytes", limits.string_bytes(), 1, 1 << 16},
          {"limits.requests_in_flight", limits.requests_in_flight(), 1, 1 << 20},
          {"limits.request_bytes_in_flight", limits.request_bytes_in_flight(), 1 << 16, uint64_t{1} << 50},
          {"limits.requests_kept", limits.requests_kept(), 1, 1 << 24},
          {"limits.steps", limits.steps(), 1, 1 << 20},
          {"limits.planned_groups", limits.planned_groups(), 1, UINT32_MAX},
          {"limits.receiving_bytes", limits.receiving_bytes(), 1 << 16, uint64_t{1} << 50},
          {"limits.stream_idle_ms", limits.stream_idle_ms(), 10, 24 * 3600 * 1000},
          {"limits.connections", limits.connections(), 1, 1 << 20}};
}

// Refuses a 0 that the file holds where a key must be more: FillDefaults would take it for a key that is not there. The
// one that has a meaning keeps it: no checkpoint is saved but on demand.
void JudgeZeros(ParsedRunConfig& parsed) {
  v1::RunConfig defaults;
  FillDefaults(defaults);
  const std::vector<Range> ranges = Ranges(parsed.config), of_defaults = Ranges(defaults);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& range = ranges[i];
    const auto line = parsed.line_of_key.find(range.key);
    if (range.value > 0 || range.min == 0 || line == parsed.line_of_key.end() || IsReported(parsed, range.key))
      continue;
    parsed.problems.push_back({range.key, line->second,
                               absl::StrCat("0 is not from ", range.min, " to ", range.max, "; without the key it is ",
                                            of_defaults[i].value)});
  }
  const char* const every_steps = "checkpoints.every_steps";
  const bool given = parsed.line_of_key.count(every_steps) > 0 && !IsReported(parsed, every_steps);
  if (given && parsed.config.checkpoints().every_steps() == 0) parsed.config.mutable_checkpoints()->set_manual(true);
}

bool IsMarker(std::string_view line, std::string_view marker) {
  return line.substr(0, 3) == marker && (line.size() == 3 || absl::ascii_isspace(static_cast<unsigned char>(line[3])));
}

// Finds the line at which a second document begins; 0: there is at most one. A line of `---` begins a document wherever
// it stands, inside of scalars too. yaml-cpp's own LoadAll does not end on some files that are not YAML.
int SecondDocumentLine(std::string_view yaml) {
  bool begun = false, ended = false;
  int number = 0;
  while (!yaml.empty()) {
    ++number;
    const size_t end = std::min(yaml.find('\n'), yaml.size());
    const std::string_view line = yaml.substr(0, end);
    yaml.remove_prefix(std::min(end + 1, yaml.size()));
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || line[first] == '#' || (!begun && line[0] == '%')) continue;
    if (IsMarker(line, "...")) {
      ended = begun;
    } else if (ended || (begun && IsMarker(line, "---"))) {
      return number;
    } else {
      begun = true;
    }
  }
  return 0;
}

// Zero takes the default.
void Fill(uint64_t value, uint64_t default_value, v1::Limits& limits, void (v1::Limits::*set)(uint64_t)) {
  if (value == 0) (limits.*set)(default_value);
}

}  // namespace

std::string RunConfigWord(const google::protobuf::EnumValueDescriptor& value) {
  if (value.number() == 0) return "";
  const std::string zero = absl::AsciiStrToLower(value.type()->FindValueByNumber(0)->name());
  const std::string word = absl::AsciiStrToLower(value.name());
  return std::string(absl::StripPrefix(word, absl::StripSuffix(zero, "unspecified")));
}

ParsedRunConfig ParseRunConfig(std::string_view yaml) {
  ParsedRunConfig parsed;
  if (const int line = SecondDocumentLine(yaml); line > 0) {
    parsed.problems.push_back(
        {"(file)", line,
         "a second YAML document begins here, and only one could be in force: remove `---` and what "
         "follows it, or keep one file per configuration"});
  }
  try {  // yaml-cpp reports only by exception
    const YAML::Node root = YAML::Load(std::string(yaml));
    if (!root.IsNull()) Reader(parsed).Read(root, "", parsed.config);
    JudgeZeros(parsed);
  } catch (const YAML::Exception& exception) {
    parsed.problems.push_back({"(file)", exception.mark.line + 1, absl::StrCat("not YAML: ", exception.msg)});
  }
  return parsed;
}

absl::StatusOr<ParsedRunConfig> ReadRunConfig(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string resolved, ResolvePath(path));
  ASSIGN_OR_RETURN(const std::string text, ReadFile(resolved, kMaxFileBytes));
  return ParseRunConfig(text);
}

void FillDefaults(v1::RunConfig& config) {
  config.set_dtype(config.dtype().empty() ? "fp32" : ShortDtypeName(config.dtype()));
  if (config.schedule() == v1::SCHEDULE_UNSPECIFIED) config.set_schedule(v1::AUTO);
  *config.mutable_mesh() = MakeMesh({.dp = DpSize(config.mesh()),
                                     .pp = PpSize(config.mesh()),
                                     .cp = CpSize(config.mesh()),
                                     .tp = TpSize(config.mesh()),
                                     .ep = EpSize(config.mesh())});
  if (config.split_groups() == v1::SPLIT_UNSPECIFIED) config.set_split_groups(v1::SPLIT_AUTO);
  if (config.shard_parameters() == v1::SHARD_PARAMETERS_UNSPECIFIED) {
    config.set_shard_parameters(v1::SHARD_PARAMETERS_AUTO);
  }
  if (config.prefix_kv() == v1::PREFIX_KV_UNSPECIFIED) config.set_prefix_kv(v1::PREFIX_KV_AUTO);
  if (config.reduce_gradients() == v1::REDUCE_GRADIENTS_UNSPECIFIED) {
    config.set_reduce_gradients(v1::REDUCE_GRADIENTS_AUTO);
  }
  if (config.durability() == v1::DURABILITY_UNSPECIFIED) config.set_durability(v1::REPLAY);
  v1::Checkpoints& checkpoints = *config.mutable_checkpoints();
  if (checkpoints.every_steps() == 0 && !checkpoints.manual() && config.durability() == v1::REPLAY) {
    checkpoints.set_every_steps(100);
  }
  if (checkpoints.every_minutes() == 0) checkpoints.set_every_minutes(60);
  if (checkpoints.keep() == 0) checkpoints.set_keep(2);
  v1::Limits& limits = *config.mutable_limits();
  Fill(limits.message_bytes(), uint64_t{64} << 20, limits, &v1::Limits::set_message_bytes);
  Fill(limits.groups(), 65536, limits, &v1::Limits::set_groups);
  Fill(limits.rollouts(), 1 << 20, limits, &v1::Limits::set_rollouts);
  Fill(limits.tokens(), uint64_t{1} << 30, limits, &v1::Limits::set_tokens);
  Fill(limits.string_bytes(), 256, limits, &v1::Limits::set_string_bytes);
  Fill(limits.requests_in_flight(), 64, limits, &v1::Limits::set_requests_in_flight);
  Fill(limits.request_bytes_in_flight(), uint64_t{4} << 30, limits, &v1::Limits::set_request_bytes_in_flight);
  Fill(limits.requests_kept(), 1024, limits, &v1::Limits::set_requests_kept);
  Fill(limits.steps(), 4096, limits, &v1::Limits::set_steps);
  Fill(limits.planned_groups(), 1 << 18, limits, &v1::Limits::set_planned_groups);
  Fill(limits.receiving_bytes(), uint64_t{4} << 30, limits, &v1::Limits::set_receiving_bytes);
  Fill(limits.stream_idle_ms(), 60'000, limits, &v1::Limits::set_stream_idle_ms);
  Fill(limits.connections(), 1024, limits, &v1::Limits::set_connections);
}

void Validate(ParsedRunConfig& parsed) {
  const v1::RunConfig& config = parsed.config;
  const auto report = [&](const std::string& key, std::string message) {
    if (IsReported(parsed, key)) return;
    const auto it = parsed.line_of_key.find(key);
    parsed.problems.push_back({key, it == parsed.line_of_key.end() ? 0 : it->second, std::move(message)});
  };
  if (config.model().empty()) report("model", "is missing: a Hugging Face model directory");
  // The system would open what stands before a zero byte.
  if (const auto at = std::find_if(config.model().begin(), config.model().end(), absl::ascii_iscntrl);
      at != config.model().end()) {
    report("model",
           absl::StrCat("has the control character \\x", absl::Hex(static_cast<unsigned char>(*at), absl::kZeroPad2),
                        " at byte ", at - config.model().begin() + 1, ": a path of a model has none"));
  }
  if (!FindRunDtype(config.dtype())) {
    report("dtype",
           absl::StrCat("\"", config.dtype(), "\" is not one of fp32, fp64, bf16 (float32, float64, bfloat16)"));
  }
  for (const Range& range : Ranges(config)) {
    if (range.value >= range.min && range.value <= range.max) continue;
    report(range.key, absl::StrCat(range.value, " is not from ", range.min, " to ", range.max));
  }
  if (config.layout() == v1::ONE_BY_ONE && config.wave_suffixes() > 1) {
    report("wave_suffixes", absl::StrCat(config.wave_suffixes(), " contradicts layout one_by_one"));
  }
  if (config.suffix_policy() == v1::S5) {
    report("suffix_policy", "s5 is of a prefix only: a suffix has no phase that runs it forward again");
  }
  if (config.prefix_policy() == v1::S5 && config.offload() == v1::OFFLOAD_ON) {
    report("offload", "on contradicts prefix_policy s5, which keeps no tape that could be moved");
  }
  if (config.checkpoints().manual() && config.checkpoints().every_steps() > 0) {
    report("checkpoints.manual", absl::StrCat("true contradicts checkpoints.every_steps ",
                                              config.checkpoints().every_steps(), ": give one of the two"));
  }
  if (config.limits().request_bytes_in_flight() < config.limits().message_bytes()) {
    report("limits.request_bytes_in_flight", "is below limits.message_bytes: no request of one message would fit");
  }
  if (config.limits().receiving_bytes() < config.limits().message_bytes()) {
    report("limits.receiving_bytes", "is below limits.message_bytes: no request of one message would fit");
  }
}

absl::Status ToStatus(const std::string& source, const ParsedRunConfig& parsed) {
  if (parsed.problems.empty()) return absl::OkStatus();
  std::vector<RunConfigProblem> problems = parsed.problems;
  std::stable_sort(problems.begin(), problems.end(),
                   [](const RunConfigProblem& a, const RunConfigProblem& b) { return a.line < b.line; });
  std::string message = absl::StrCat(source, ": ", problems.size(), problems.size() == 1 ? " problem" : " problems");
  for (const RunConfigProblem& problem : problems) {
    absl::StrAppend(&message, "\n  ");
    if (problem.line > 0) absl::StrAppend(&message, "line ", problem.line, ": ");
    absl::StrAppend(&message, problem.key, ": ", problem.message);
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace stemma
