// Programs as text, and what refuses them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/program_check.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

inline std::string Text(const Program& program) {
  std::string text;
  for (const Operation& operation : program) text += (text.empty() ? "" : " ") + OperationText(operation);
  return text;
}

inline Operation Of(OperationKind kind, int cluster = 0, int wave = 0) {
  return {.kind = kind, .cluster = cluster, .wave = wave};
}

inline void ExpectRefused(const std::vector<Program>& ranks, const std::string& what, bool forward_only = false) {
  const absl::Status status = testing::CheckPrograms(ranks, forward_only).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_NE(status.message().find(what), std::string::npos) << status;
}

}  // namespace stemma::worker
