#include "common/kv/manifest/reason.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "proto/google/rpc/error_details.pb.h"

namespace baton::kv {

absl::Status FailedPreconditionWithReason(std::string_view reason, std::string_view message) {
  absl::Status status =
      absl::FailedPreconditionError(absl::StrCat(std::string(reason), ": ", std::string(message)));
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("baton");
  const std::string bytes = info.SerializeAsString();
  // By string_view: Cord's constructor template has another mangled name under newer clangs than in
  // the distribution's library.
  status.SetPayload(std::string(kErrorInfoTypeUrl), absl::Cord(absl::string_view(bytes)));
  return status;
}

}  // namespace baton::kv
