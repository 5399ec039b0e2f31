// Collects the first broken rule of an op's parameters.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "kernels/core/dtype.h"

namespace baton::kernels {

// One checker per Validate call; not thread-safe. Every rule is tested, the first that fails is
// told.
class ParamChecker {
 public:
  explicit ParamChecker(absl::string_view op) : op_(op) {}

  ParamChecker& NotNegative(absl::string_view field, int64_t value) {
    return Require(value >= 0, field, value, "must not be negative");
  }
  ParamChecker& Positive(absl::string_view field, int64_t value) {
    return Require(value > 0, field, value, "must be positive");
  }
  ParamChecker& AtLeast(absl::string_view field, int64_t value, int64_t least) {
    if (value < least && status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(op_, ": ", field, " is ", value, " but must be at least ", least));
    }
    return *this;
  }
  ParamChecker& InRange(absl::string_view field, int64_t index, int64_t value, int64_t end) {
    if ((value < 0 || value >= end) && status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          op_, ": ", field, "[", index, "] is ", value, " but must be in [0, ", end, ")"));
    }
    return *this;
  }
  ParamChecker& NotNull(absl::string_view field, const void* pointer) {
    if (pointer == nullptr && status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(op_, ": ", field, " is null"));
    }
    return *this;
  }
  ParamChecker& FloatDType(absl::string_view field, DType dtype) {
    return SupportedDType(
        field, dtype, dtype == DType::kF32 || dtype == DType::kBF16, "f32 and bf16");
  }
  ParamChecker& PageDType(absl::string_view field, DType dtype) {
    return SupportedDType(field,
                          dtype,
                          dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF8E4M3,
                          "f32, bf16 and f8e4m3");
  }
  ParamChecker& Require(bool holds,
                        absl::string_view field,
                        int64_t value,
                        absl::string_view rule) {
    if (!holds && status_.ok()) {
      status_ =
          absl::InvalidArgumentError(absl::StrCat(op_, ": ", field, " is ", value, " but ", rule));
    }
    return *this;
  }

  bool ok() const { return status_.ok(); }
  absl::Status status() const { return status_; }

 private:
  ParamChecker& SupportedDType(absl::string_view field,
                               DType dtype,
                               bool supported,
                               absl::string_view all) {
    if (!supported && status_.ok()) {
      const std::string_view name = DTypeName(dtype);
      status_ = absl::InvalidArgumentError(absl::StrCat(op_,
                                                        ": ",
                                                        field,
                                                        " is ",
                                                        absl::string_view(name.data(), name.size()),
                                                        "; only ",
                                                        all,
                                                        " are supported"));
    }
    return *this;
  }

  absl::string_view op_;
  absl::Status status_;
};

}  // namespace baton::kernels
