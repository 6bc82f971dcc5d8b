// Early return on an absl::Status that is not OK. Debian's Abseil has no such macros.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define STEMMA_CONCAT_INNER(a, b) a##b
#define STEMMA_CONCAT(a, b) STEMMA_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expr)                                         \
  do {                                                                \
    if (absl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

// Use: `ASSIGN_OR_RETURN(auto value, Function());`
#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_IMPL(STEMMA_CONCAT(statusor_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(statusor, lhs, expr) \
  auto statusor = (expr);                          \
  if (!statusor.ok()) return statusor.status();    \
  lhs = std::move(statusor).value()
