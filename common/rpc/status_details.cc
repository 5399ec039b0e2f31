#include "common/rpc/status_details.h"

#include <cstdint>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

#include "proto/google/rpc/error_details.pb.h"

namespace baton::rpc {
namespace {

template <typename Detail>
std::string TypeUrl() {
  return absl::StrCat("type.googleapis.com/", Detail::descriptor()->full_name());
}

template <typename Detail>
void SetDetail(absl::Status& status, const Detail& detail) {
  const std::string bytes = detail.SerializeAsString();
  status.SetPayload(TypeUrl<Detail>(), absl::Cord(absl::string_view(bytes)));
}

template <typename Detail>
std::optional<Detail> GetDetail(const absl::Status& status) {
  const auto payload = status.GetPayload(TypeUrl<Detail>());
  Detail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) {
    return std::nullopt;
  }
  return detail;
}

}  // namespace

absl::Status InvalidField(std::string_view field, std::string_view message) {
  absl::Status status =
      absl::InvalidArgumentError(absl::StrCat(std::string(field), ": ", std::string(message)));
  google::rpc::BadRequest detail;
  auto* violation = detail.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(message));
  SetDetail(status, detail);
  return status;
}

absl::Status WithReason(absl::Status status,
                        std::string_view reason,
                        const std::map<std::string, std::string>& metadata) {
  google::rpc::ErrorInfo detail;
  detail.set_reason(std::string(reason));
  detail.set_domain(std::string(kErrorDomain));
  detail.mutable_metadata()->insert(metadata.begin(), metadata.end());
  SetDetail(status, detail);
  return status;
}

absl::Status WithRetry(absl::Status status, absl::Duration retry_after) {
  google::rpc::RetryInfo detail;
  const int64_t nanos = absl::ToInt64Nanoseconds(retry_after);
  detail.mutable_retry_delay()->set_seconds(nanos / 1'000'000'000);
  detail.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  SetDetail(status, detail);
  return status;
}

absl::Status ResourceExhausted(std::string_view reason,
                               std::string_view message,
                               absl::Duration retry_after) {
  return WithRetry(WithReason(absl::ResourceExhaustedError(std::string(message)), reason),
                   retry_after);
}

absl::Status Unavailable(std::string_view reason,
                         std::string_view message,
                         absl::Duration retry_after) {
  return WithRetry(WithReason(absl::UnavailableError(std::string(message)), reason), retry_after);
}

std::string ReasonOf(const absl::Status& status) {
  const auto detail = GetDetail<google::rpc::ErrorInfo>(status);
  return detail.has_value() ? detail->reason() : "";
}

std::map<std::string, std::string> ReasonMetadata(const absl::Status& status) {
  const auto detail = GetDetail<google::rpc::ErrorInfo>(status);
  std::map<std::string, std::string> metadata;
  if (detail.has_value()) {
    metadata.insert(detail->metadata().begin(), detail->metadata().end());
  }
  return metadata;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const auto detail = GetDetail<google::rpc::RetryInfo>(status);
  if (!detail.has_value() || !detail->has_retry_delay()) {
    return std::nullopt;
  }
  return absl::Seconds(detail->retry_delay().seconds()) +
         absl::Nanoseconds(detail->retry_delay().nanos());
}

std::vector<FieldViolation> FieldViolations(const absl::Status& status) {
  std::vector<FieldViolation> violations;
  if (const auto detail = GetDetail<google::rpc::BadRequest>(status)) {
    for (const auto& violation : detail->field_violations()) {
      violations.push_back({violation.field(), violation.description()});
    }
  }
  return violations;
}

}  // namespace baton::rpc
