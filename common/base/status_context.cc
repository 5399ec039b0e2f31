#include "common/base/status_context.h"

#include <string>

namespace baton {

absl::Status WithContext(const absl::Status& status, std::string_view context) {
  if (status.ok()) {
    return status;
  }
  std::string message(context);
  message.append(": ").append(status.message().data(), status.message().size());
  absl::Status result(status.code(), message);
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { result.SetPayload(type, payload); });
  return result;
}

}  // namespace baton
