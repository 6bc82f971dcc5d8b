#include "client/cli/output/run_config_record.h"

#include "client/cli/output/request_records.h"
#include "common/base/run_config.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace stemma::cli {
namespace {

constexpr char kPlannerChooses[] = "the planner chooses";

}  // namespace

Record RunConfigRecord(const v1::RunConfig& config) {
  using google::protobuf::FieldDescriptor;
  Record record = MessageRecord(config);
  v1::RunConfig defaults;
  FillDefaults(defaults);
  const google::protobuf::Descriptor& fields = *config.GetDescriptor();
  for (int i = 0; i < fields.field_count(); ++i) {
    const FieldDescriptor& field = *fields.field(i);
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) continue;
    const std::string word = RunConfigWord(*config.GetReflection()->GetEnum(config, &field));
    const bool has_default = defaults.GetReflection()->GetEnumValue(defaults, &field) != 0;
    record[field.name()] = !word.empty() ? Record(word) : has_default ? Record() : Record(kPlannerChooses);
  }
  if (config.wave_suffixes() == 0) record["wave_suffixes"] = kPlannerChooses;
  if (config.prefix_block_rows() == 0) record["prefix_block_rows"] = kPlannerChooses;
  if (config.head_chunk_tokens() == 0) record["head_chunk_tokens"] = "the worker's device chooses";
  return record;
}

}  // namespace stemma::cli
