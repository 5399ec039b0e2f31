#include "services/prefill/operations/introduce.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/config/host_port.h"
#include "common/handoff/send/sender.h"
#include "common/rpc/status_details.h"
#include "proto/baton/worker/v1/prefill.pb.h"

namespace baton::prefill::operations {
namespace {

constexpr int kMaxAddresses = 1024;

}  // namespace

absl::Status Introduce(handoff::Sender& sender, const worker::v1::IntroduceRequest& request) {
  if (request.control_addresses_size() > kMaxAddresses) {
    return rpc::InvalidField("control_addresses",
                             absl::StrCat("at most ", kMaxAddresses, " are taken at once"));
  }
  for (const std::string& address : request.control_addresses()) {
    if (const auto parsed = config::ParseHostPort(address); !parsed.ok()) {
      return rpc::InvalidField("control_addresses", parsed.status().ToString());
    }
  }
  for (const std::string& address : request.control_addresses()) {
    sender.Warm(address);
  }
  return absl::OkStatus();
}

}  // namespace baton::prefill::operations
