#include <algorithm>
#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/rpc/health_client.h"
#include "services/client/commands/commands.h"
#include "services/client/error_text.h"
#include "services/client/flags.h"

ABSL_FLAG(int32_t, wait, 0, "health: seconds to wait until the router is ready");

namespace baton::client {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
constexpr absl::Duration kCheckTimeout = absl::Seconds(5);

}  // namespace

absl::Status RunHealth() {
  BATON_ASSIGN_OR_RETURN(const auto connection, ConnectionFromFlags());
  const absl::Time deadline = absl::Now() + absl::Seconds(absl::GetFlag(FLAGS_wait));
  while (true) {
    const absl::StatusOr<bool> serving =
        rpc::CheckHealth(connection->channel(), "readiness", absl::Now() + kCheckTimeout);
    if (serving.ok() && *serving) {
      std::cout << "SERVING" << std::endl;
      return absl::OkStatus();
    }
    if (absl::Now() + kPollInterval >= deadline) {
      return serving.ok() ? absl::UnavailableError("UNAVAILABLE: the router is NOT_SERVING")
                          : absl::Status(serving.status().code(), ErrorText(serving.status()));
    }
    absl::SleepFor(kPollInterval);
  }
}

}  // namespace baton::client
