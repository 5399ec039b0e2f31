#include "services/client/error_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"

namespace baton::client {

std::string ErrorText(const absl::Status& status) {
  if (status.ok()) {
    return "OK";
  }
  std::vector<std::string> details;
  if (const std::string reason = rpc::ReasonOf(status); !reason.empty()) {
    details.push_back(absl::StrCat("reason ", reason));
  }
  for (const auto& [key, value] : rpc::ReasonMetadata(status)) {
    details.push_back(absl::StrCat(key, " ", value));
  }
  for (const rpc::FieldViolation& violation : rpc::FieldViolations(status)) {
    details.push_back(absl::StrCat("field ", violation.field));
  }
  if (const auto retry = rpc::RetryAfter(status); retry.has_value()) {
    details.push_back(absl::StrCat("retry after ", absl::FormatDuration(*retry)));
  }
  std::string text =
      absl::StrCat(rpc::CodeName(status.code()), ": ", std::string(status.message()));
  if (!details.empty()) {
    absl::StrAppend(&text, " (", absl::StrJoin(details, ", "), ")");
  }
  return text;
}

absl::Status ReadableStatus(const grpc::Status& status) {
  const absl::Status converted = rpc::FromGrpcStatus(status);
  if (converted.ok()) {
    return converted;
  }
  absl::Status readable(converted.code(), ErrorText(converted));
  converted.ForEachPayload([&](absl::string_view type_url, const absl::Cord& payload) {
    readable.SetPayload(type_url, payload);
  });
  return readable;
}

}  // namespace baton::client
