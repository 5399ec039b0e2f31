#include "services/router/validate/field_violations.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

#include "proto/google/rpc/error_details.pb.h"

namespace baton::router {
namespace {

// A request can be wrong in thousands of places; so many are told.
constexpr size_t kMaxViolations = 8;
constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";

}  // namespace

void FieldViolations::Add(std::string_view field, std::string_view description) {
  if (violations_.size() < kMaxViolations) {
    violations_.emplace_back(field, description);
  }
}

absl::Status FieldViolations::ToStatus() const {
  if (violations_.empty()) {
    return absl::OkStatus();
  }
  google::rpc::BadRequest details;
  std::string message;
  for (const auto& [field, description] : violations_) {
    absl::StrAppend(&message, message.empty() ? "" : "; ", field, ": ", description);
    auto* violation = details.add_field_violations();
    violation->set_field(field);
    violation->set_description(description);
  }
  absl::Status status = absl::InvalidArgumentError(message);
  const std::string bytes = details.SerializeAsString();
  status.SetPayload(kBadRequestUrl, absl::Cord(absl::string_view(bytes)));
  return status;
}

}  // namespace baton::router
