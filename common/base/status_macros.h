// Early return on a failed absl::Status.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define BATON_RETURN_IF_ERROR(expr)                                 \
  do {                                                              \
    if (absl::Status baton_status_ = (expr); !baton_status_.ok()) { \
      return baton_status_;                                         \
    }                                                               \
  } while (false)

#define BATON_CONCAT_INNER_(a, b) a##b
#define BATON_CONCAT_(a, b) BATON_CONCAT_INNER_(a, b)

// BATON_ASSIGN_OR_RETURN(auto x, MakeX()); in a function that returns Status or StatusOr.
#define BATON_ASSIGN_OR_RETURN(lhs, expr) \
  BATON_ASSIGN_OR_RETURN_IMPL_(BATON_CONCAT_(baton_statusor_, __LINE__), lhs, expr)
#define BATON_ASSIGN_OR_RETURN_IMPL_(temp, lhs, expr) \
  auto temp = (expr);                                 \
  if (!temp.ok()) {                                   \
    return std::move(temp).status();                  \
  }                                                   \
  lhs = *std::move(temp)
