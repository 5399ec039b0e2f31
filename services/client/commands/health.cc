#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/rpc/health_client.h"
#include "services/client/commands/commands.h"
#include "services/client/error_text.h"
#include "services/client/flags.h"

ABSL_FLAG(int32_t, wait, 0, "health: seconds to wait until the router is ready");
ABSL_FLAG(std::string,
          service,
          "readiness",
          "health: name of the health service that is asked for: readiness or liveness");

namespace baton::client {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
constexpr absl::Duration kCheckTimeout = absl::Seconds(5);

}  // namespace

absl::Status RunHealth() {
  const std::string service = absl::GetFlag(FLAGS_service);
  BATON_RETURN_IF_ERROR(config::CheckFlagChoice("service", service, {"readiness", "liveness"}));
  BATON_ASSIGN_OR_RETURN(const auto connection, ConnectionFromFlags());
  const absl::Time deadline = absl::Now() + absl::Seconds(absl::GetFlag(FLAGS_wait));
  while (true) {
    const absl::StatusOr<bool> serving =
        rpc::CheckHealth(connection->channel(), service, absl::Now() + kCheckTimeout);
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
