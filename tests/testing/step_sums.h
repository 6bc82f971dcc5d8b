// A vote's numbers by the names of their fields, for tests that walk over phases or print all of them.
#pragma once

#include <map>
#include <string>

#include "stemma/internal/v1/worker.pb.h"

namespace stemma::testing {

// Every field of StepSums, those that are zero included.
inline std::map<std::string, double> SumsByName(const internal::v1::StepSums& sums) {
  const google::protobuf::Reflection& reflection = *sums.GetReflection();
  std::map<std::string, double> result;
  for (int i = 0; i < sums.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *sums.GetDescriptor()->field(i);
    const bool is_double = field.cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE;
    result[field.name()] =
        is_double ? reflection.GetDouble(sums, &field) : static_cast<double>(reflection.GetUInt64(sums, &field));
  }
  return result;
}

}  // namespace stemma::testing
