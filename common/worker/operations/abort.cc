#include "common/worker/operations/abort.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "common/rpc/status_details.h"
#include "common/worker/worker.h"

namespace baton::worker::operations {
namespace {

constexpr int kMaxIds = 10'000;

}  // namespace

absl::Status Abort(Worker& worker, const v1::AbortRequest& request) {
  if (request.request_ids_size() > kMaxIds) {
    return rpc::InvalidField("request_ids", absl::StrCat("has more than ", kMaxIds, " ids"));
  }
  for (const std::string& id : request.request_ids()) {
    worker.engine().Cancel(id, absl::CancelledError("aborted by an operator"));
  }
  return absl::OkStatus();
}

}  // namespace baton::worker::operations
